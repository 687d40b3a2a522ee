"""The router's two seams over Ray: a slot on a replica by handle, its tokens by socket; the controller by handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deploy.manifest import CONTROLLER_APP, CONTROLLER_DEPLOYMENT, PATH_DEPLOYMENT, app_of
from fleet.errors import FleetError, Overloaded, ReplicaLost, Unavailable
from fleet.generation import GenerationRequest, TokenChunk
from fleet.traffic import ReportReply, RouterReport
from router.token_client import TokenClient

Slot = DeploymentResponseGenerator[dict[str, str]]

LOOK_SECONDS = 1.0
UNREADY_SECONDS = 5.0
"""How long a request waits while its path has no replica at all; with one, the router's own deadlines hold."""
CONTROL_SECONDS = 3.0


def path_handles(paths: Sequence[str]) -> dict[str, DeploymentHandle[Any]]:
    """Streaming handles of the paths' deployments, which need not be up yet."""
    return {
        path: serve.get_deployment_handle(PATH_DEPLOYMENT, app_of(path), _check_exists=False).options(stream=True)
        for path in paths
    }


def controller_handle() -> DeploymentHandle[Any]:
    """The controller's handle; it need not be up yet, and may restart."""
    return serve.get_deployment_handle(CONTROLLER_DEPLOYMENT, CONTROLLER_APP, _check_exists=False)


class RayBackend:
    """`router.backend.Backend` over one Serve application per path; the controller says how many replicas each has."""

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any]]) -> None:
        self._handles = handles
        self._ready = dict.fromkeys(handles, 0)
        self._clients: dict[str, TokenClient] = {}

    def replicas(self, path: str) -> int:
        return self._ready.get(path, 0)

    def note_ready(self, ready: Mapping[str, int]) -> None:
        """The controller's newest count; paths that it does not name stay as they were."""
        self._ready.update(ready)

    async def generate(self, path: str, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        with _translated(path):
            slot = cast(Slot, self._handles[path].admit.remote(request.request_id))
        try:
            place = await self._admission(path, slot)
            try:
                client = await self._client(place["tokens_address"])
                async with aclosing(client.generate(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except ReplicaLost as error:
                # An orderly goodbye names no replica; it is no crash.
                replica = place["replica_id"] if error.replica else None
                raise ReplicaLost(f"replica {place['replica_id']} of '{path}': {error}", replica=replica) from error
        finally:
            slot.cancel()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _admission(self, path: str, slot: Slot) -> dict[str, str]:
        """Where the chosen replica's token socket is, once Serve has found a slot."""
        waiting = asyncio.ensure_future(anext(slot))
        unready_seconds = 0.0
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=LOOK_SECONDS)
                unready_seconds = 0.0 if self._ready[path] else unready_seconds + LOOK_SECONDS
                if not waiting.done() and unready_seconds >= UNREADY_SECONDS:
                    raise Unavailable(f"no replica of path '{path}' is ready")
            with _translated(path):
                return waiting.result()
        finally:
            waiting.cancel()

    async def _client(self, address: str) -> TokenClient:
        """The client of a replica; those of replicas that have left make room when a new one comes."""
        if address not in self._clients:
            self._clients[address] = TokenClient(address)
            for gone in [other for other, client in self._clients.items() if client.is_broken]:
                await self._clients.pop(gone).close()
        return self._clients[address]


class RayControl:
    """`router.backend.Control` over the controller's Serve application."""

    def __init__(self, handle: DeploymentHandle[Any], on_ready: Callable[[Mapping[str, int]], None]) -> None:
        """`on_ready` hears the count of ready replicas in every reply."""
        self._handle = handle
        self._on_ready = on_ready

    async def report(self, report: RouterReport) -> ReportReply:
        reply = cast(ReportReply, await self._call("report", report))
        self._on_ready(reply.ready)
        return reply

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], await self._call("command", name, dict(arguments)))

    async def status(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], await self._call("status"))

    async def metrics(self) -> bytes:
        return cast(bytes, await self._call("metrics"))

    async def _call(self, method: str, *arguments: object) -> object:
        response = self._handle.options(method_name=method).remote(*arguments)
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await response
        except RayTaskError as error:
            if isinstance(error.cause, FleetError):
                raise error.cause from None
            raise Unavailable(f"the controller failed: {error.cause!r}") from error
        except (RayError, RayServeException, TimeoutError) as error:
            raise Unavailable("the controller cannot be reached") from error
        finally:
            response.cancel()  # type: ignore[no-untyped-call]


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Ray's errors about a slot as ours."""
    try:
        yield
    except BackPressureError as error:
        raise Overloaded(f"the queue of path '{path}' is full") from error
    except DeploymentUnavailableError as error:
        raise Unavailable(f"path '{path}' is not deployed") from error
    except StopAsyncIteration as error:
        raise ReplicaLost(f"a replica of path '{path}' gave no slot") from error
    except (RayError, RayServeException) as error:
        raise ReplicaLost(f"a replica of path '{path}' was lost before it took the request") from error
