"""The two Serve applications whose token paths `router_cost.py` compares, each in front of a worker without a model."""

# No `from __future__ import annotations` here: Serve looks at the annotation itself to make the typed argument.
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import StreamingResponse

from deploy.bench.stand_in import Pace, StandIn, stamp
from deploy.bench.stand_in_fleet import STEP_SECONDS
from deploy.manifest import PATH_DEPLOYMENT
from deploy.serve_args import PathArgs


class StandInPath:
    """Takes the place of `PathReplica`: the same slots and the same token socket, without a model."""

    async def __init__(self, args: PathArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._tokens = StandIn(STEP_SECONDS[args.path])
        self._address = await self._tokens.start()

    async def admit(self, request_id: str) -> AsyncIterator[dict[str, str]]:
        yield {"tokens_address": self._address, "replica_id": self._replica_id}
        await self._tokens.finished(request_id)


def path(args: PathArgs) -> Application:
    """A path of the fleet with `StandInPath` behind it."""
    return serve.deployment(name=PATH_DEPLOYMENT)(StandInPath).bind(args)


class PlainWorker:
    """Streams one item per token through its Serve handle."""

    async def generate(self, tokens: int, step_seconds: float) -> AsyncIterator[str]:
        pace = Pace(step_seconds)
        for _ in range(tokens):
            await pace.step()
            yield stamp()


class Plain:
    """An ingress as one would write it with Serve alone: each item of the handle's stream becomes an event."""

    def __init__(self, worker: DeploymentHandle[Any]) -> None:
        self._generate = worker.options(method_name="generate", stream=True)

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.json()
        items = self._generate.remote(body["max_tokens"], STEP_SECONDS[request.headers["x-fleet-path"]])
        events = _events(cast(AsyncIterator[str], items), body["model"])
        return StreamingResponse(events, media_type="text/event-stream")


def plain(_: dict[str, str]) -> Application:
    """Ingress and worker, connected by a handle."""
    worker = serve.deployment(max_ongoing_requests=2000)(PlainWorker).bind()
    return serve.deployment(max_ongoing_requests=2000)(Plain).bind(worker)


async def _events(items: AsyncIterator[str], model: str) -> AsyncIterator[str]:
    head = json.dumps({"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk", "model": model})[:-1]
    before = f'data: {head},"choices":[{{"index":0,"delta":{{"content":'
    after = '},"finish_reason":null}]}\n\n'
    async for text in items:
        yield before + json.dumps(text) + after
    yield "data: [DONE]\n\n"
