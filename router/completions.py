"""The two generating endpoints: body in, events or one body out, and a client that leaves cancels everything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from fleet.errors import FleetError
from router.access import Access
from router.answers import Choice, Envelope, envelope, full_body
from router.bodies import BodyReader, understood
from router.dispatch import Dispatcher, Serving
from router.intake import Api, Intake, Job
from router.openai_schema import ChatBody, CompletionBody, parse
from router.split import RequestFacts
from router.sse import DONE, EventWriter, error_event


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """An ASGI app for one of the two APIs."""

    api: Api
    dispatcher: Dispatcher
    intake: Intake
    access: Access
    bodies: BodyReader
    longest_seconds: float
    """How long one answer may take, waiting and reading included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        tenant = self.access.tenant(request.headers)
        job = await self._job(request)
        facts = facts_of(job, request.headers, tenant)
        answer = self._stream(job, facts, send) if job.style.is_streamed else self._full(job, facts, scope, send)
        await unless_disconnected(receive, answer, self.longest_seconds)

    async def _job(self, request: Request) -> Job:
        raw = await self.bodies.json(request)
        request_id = request.headers["x-request-id"]
        return await understood(raw, lambda raw: self._read(raw, request_id))

    def _read(self, raw: bytes, request_id: str) -> Job:
        if self.api is Api.CHAT:
            chat = parse(ChatBody, raw)
            return self.intake.chat(chat, chat.request_id or request_id)
        text = parse(CompletionBody, raw)
        return self.intake.completion(text, text.request_id or request_id)

    async def _full(self, job: Job, facts: RequestFacts, scope: Scope, send: Send) -> None:
        choices = [Choice() for _ in range(job.choices)]
        for index, choice in enumerate(choices):
            choice.begin(job, index)
        async with self.dispatcher.serve(job, facts) as serving, aclosing(serving.chunks()) as arrivals:
            async for arrived in arrivals:
                for index, chunk in arrived:
                    choices[index].add(job.style.shown(chunk))
            body = full_body(self._envelope(job), job, choices, serving.account, self.intake.tokenizer)
            response = JSONResponse(body, headers=headers_of(serving))
            await response(scope, _nothing_more, send)

    async def _stream(self, job: Job, facts: RequestFacts, send: Send) -> None:
        is_started = False
        try:
            async with self.dispatcher.serve(job, facts) as serving, aclosing(serving.chunks()) as arrivals:
                writer = EventWriter(self._envelope(job), job, serving.account, self.intake.tokenizer)
                async for arrived in arrivals:
                    events = b"".join([writer.chunk(index, job.style.shown(chunk)) for index, chunk in arrived])
                    if not is_started:
                        # Not before the first token: until then a failure can still be an honest HTTP status.
                        is_started = True
                        await send(_stream_start(headers_of(serving)))
                    if events:
                        await send({"type": "http.response.body", "body": events, "more_body": True})
                await send({"type": "http.response.body", "body": writer.usage() + DONE, "more_body": False})
        except FleetError as error:
            if not is_started:
                raise
            await send({"type": "http.response.body", "body": error_event(error), "more_body": False})

    def _envelope(self, job: Job) -> Envelope:
        return envelope(job, int(self.dispatcher.clock.wall()), self.intake.model.name)


def facts_of(job: Job, headers: Mapping[str, str], tenant: str | None) -> RequestFacts:
    """What routing may look at."""
    return RequestFacts(
        request_id=job.request_id,
        prompt_tokens=job.longest_prompt,
        max_tokens=job.sampling.max_tokens,
        is_greedy=job.sampling.is_greedy,
        user=job.user,
        tenant=tenant,
        headers=headers,
    )


def headers_of(serving: Serving) -> dict[str, str]:
    return {
        "x-request-id": serving.job.request_id,
        "x-fleet-path": serving.account.assignment.path,
        "x-fleet-seed": str(serving.job.sampling.seed),
    }


async def unless_disconnected(receive: Receive, answer: Coroutine[Any, Any, None], longest_seconds: float) -> None:
    """Run the answer to its end, or until the client has left; then it is cancelled and has cleaned up.

    A client that does not read what it asked for counts as gone after `longest_seconds`.
    """
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({answering, leaving}, timeout=longest_seconds, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing_more() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def _stream_start(headers: Mapping[str, str]) -> dict[str, Any]:
    lines = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        **headers,
    }
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}
