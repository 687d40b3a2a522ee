"""The router's HTTP surface: the OpenAI API and its helpers, health and metrics, and the admin API."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fleet.config import RouterConfig
from fleet.errors import BadRequest, FleetError, NotFound, Overloaded, Unavailable
from fleet.metrics import CONTENT_TYPE
from router.access import Access
from router.answers import error_body
from router.backend import Control
from router.bodies import BodyReader, understood
from router.completions import GenerationEndpoint
from router.dashboard.pages import DashboardPages
from router.dispatch import Dispatcher
from router.intake import Api, Intake, ServedModel, plain_messages
from router.openai_schema import DetokenizeBody, TokenizeBody, parse
from router.reporter import Reporter, running
from router.request_ids import RequestIds

if TYPE_CHECKING:
    from fleet.tokenizer import Tokenizer

SEED_BITS = 53
"""Seeds that the router draws survive clients whose numbers are doubles."""
READING_SECONDS = 60.0
"""How long a client may go on reading an answer after the time in which it had to be generated."""


def build_app(
    dispatcher: Dispatcher, tokenizer: Tokenizer, control: Control, model: ServedModel, config: RouterConfig
) -> Starlette:
    """The router as an ASGI app. While its lifespan lasts it reports to the controller and follows its split."""
    intake = Intake(tokenizer, model, draw_seed=lambda: secrets.randbits(SEED_BITS))
    access = Access(config)
    bodies = BodyReader(config)
    endpoint = partial(
        GenerationEndpoint,
        dispatcher=dispatcher,
        intake=intake,
        access=access,
        bodies=bodies,
        longest_seconds=config.request_timeout_s + READING_SECONDS,
    )
    pages = _Pages(dispatcher, intake, access, bodies)
    reporter = Reporter(dispatcher, control, config.report_interval_s)
    admin = _Admin(control, access, bodies, reporter)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with running(reporter):
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoint(Api.CHAT), methods=["POST"]),
            Route("/v1/completions", endpoint(Api.COMPLETIONS), methods=["POST"]),
            Route("/v1/models", pages.models),
            Route("/v1/models/{name:path}", pages.model),
            Route("/tokenize", pages.tokenize, methods=["POST"]),
            Route("/detokenize", pages.detokenize, methods=["POST"]),
            Route("/tokenizer_info", pages.tokenizer_info),
            Route("/health", pages.health),
            Route("/ping", pages.health, methods=["GET", "POST"]),
            Route("/version", pages.version),
            Route("/metrics", admin.metrics),
            Route("/admin/status", admin.status),
            Route("/admin/canary/{command}", admin.command, methods=["POST"]),
            Route("/reset_prefix_cache", admin.reset_prefix_cache, methods=["POST"]),
            *DashboardPages().routes(),
        ],
        exception_handlers={
            FleetError: _fleet_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _unexpected,
        },
        middleware=[Middleware(RequestIds)],
        lifespan=lifespan,
    )


class _Pages:
    """What the router answers by itself."""

    def __init__(self, dispatcher: Dispatcher, intake: Intake, access: Access, bodies: BodyReader) -> None:
        self._dispatcher = dispatcher
        self._intake = intake
        self._access = access
        self._bodies = bodies

    async def models(self, request: Request) -> Response:
        self._access.tenant(request.headers)
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        self._access.tenant(request.headers)
        self._intake.check_model(request.path_params["name"])
        return JSONResponse(self._model_card())

    async def tokenize(self, request: Request) -> Response:
        self._access.tenant(request.headers)
        tokens = await understood(await self._bodies.json(request), self._tokens)
        return JSONResponse({"count": len(tokens), "max_model_len": self._intake.model.max_model_len, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        self._access.tenant(request.headers)
        return JSONResponse({"prompt": await understood(await self._bodies.json(request), self._text)})

    def _tokens(self, raw: bytes) -> list[int]:
        body = parse(TokenizeBody, raw)
        self._intake.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequest("exactly one of 'prompt' and 'messages' is needed", param="prompt")
        tokenizer = self._intake.tokenizer
        if body.messages is not None:
            return tokenizer.render_chat(
                plain_messages(body.messages), add_generation_prompt=body.add_generation_prompt is not False
            )
        return tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)

    def _text(self, raw: bytes) -> str:
        body = parse(DetokenizeBody, raw)
        self._intake.check_model(body.model)
        tokens = self._intake.known_tokens(body.tokens, "tokens")
        return self._intake.tokenizer.decode(tokens, skip_special_tokens=False)

    async def tokenizer_info(self, request: Request) -> Response:
        self._access.tenant(request.headers)
        tokenizer = self._intake.tokenizer
        ids = {
            "bos_token": tokenizer.bos_token_id,
            "eos_token": min(tokenizer.eos_token_ids, default=None),
            "pad_token": tokenizer.pad_token_id,
        }
        return JSONResponse(
            {
                "vocab_size": tokenizer.vocab_size,
                "model_max_length": self._intake.model.max_model_len,
                **{name: None if token is None else tokenizer.token_text(token) for name, token in ids.items()},
                "chat_template": tokenizer.chat_template,
                "has_chat_template": tokenizer.has_chat_template,
                "content_hash": tokenizer.content_hash,
            }
        )

    async def health(self, request: Request) -> Response:
        """200 while stable has a replica: then any request can be served."""
        return Response(status_code=200 if self._dispatcher.is_ready else 503)

    async def version(self, request: Request) -> Response:
        try:
            return JSONResponse({"version": version("speculation-fleet")})
        except PackageNotFoundError:
            return JSONResponse({"version": "unpackaged"})

    def _model_card(self) -> dict[str, Any]:
        model = self._intake.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "fleet",
            "root": model.root,
            "parent": None,
            "max_model_len": model.max_model_len,
            "permission": [],
        }


class _Admin:
    """What the router passes on to the controller."""

    def __init__(self, control: Control, access: Access, bodies: BodyReader, reporter: Reporter) -> None:
        self._control = control
        self._access = access
        self._bodies = bodies
        self._reporter = reporter
        self._last_metrics: bytes | None = None

    async def metrics(self, request: Request) -> Response:
        """The whole fleet's metrics; the last known while the controller is away, so that no series breaks off.

        What this router has seen is reported first: tools that count between two scrapes miss no token at the end.
        """
        await self._reporter.deliver()
        with suppress(Unavailable):
            self._last_metrics = await self._control.metrics()
        if self._last_metrics is None:
            raise Unavailable("the controller has not been reached yet")
        return Response(self._last_metrics, media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        self._access.check_admin(request.headers)
        return JSONResponse(await self._control.status())

    async def command(self, request: Request) -> Response:
        self._access.check_admin(request.headers)
        raw = await self._bodies.raw(request)
        try:
            arguments = from_json(raw, allow_inf_nan=False) if raw else {}
        except ValueError as error:
            raise BadRequest(f"the body is not valid JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise BadRequest("the body must be a JSON object with the command's arguments")
        return JSONResponse(await self._control.command(request.path_params["command"], arguments))

    async def reset_prefix_cache(self, request: Request) -> Response:
        """For benchmark tools that ask for a cold cache between runs; no prefix outlives its request here."""
        self._access.check_admin(request.headers)
        return Response(status_code=200)


async def _fleet_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, FleetError):
        raise error
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
    return JSONResponse(error_body(error), error.http_status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals and those of bodies in OpenAI's shape."""
    if not isinstance(error, HTTPException):
        raise error
    detail = error.detail
    if error.status_code in (404, 405):
        detail = f"{HTTPStatus(error.status_code).phrase}: {request.method} {request.url.path}"
    body = error_body(NotFound(detail) if error.status_code == 404 else BadRequest(detail))
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _client_left(request: Request, error: Exception) -> Response:
    """Nobody reads this; 499 is what logs know it by."""
    return PlainTextResponse("client closed the request", 499)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A bug of ours, which the server logs with its traceback."""
    return JSONResponse(error_body(FleetError("internal error")), 500)
