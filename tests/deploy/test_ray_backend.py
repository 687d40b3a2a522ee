"""The router's seams over Ray: a slot, then tokens from its socket; every failure in the router's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from deploy.bench.stand_in import StandIn
from fleet.errors import Conflict, FleetError, Overloaded, ReplicaLost, Unavailable
from fleet.generation import FinishReason, GenerationRequest, SamplingParams

# Ray's own modules use what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


@pytest.fixture
def ray_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    from deploy import ray_backend  # imported here so that the mark covers Ray's warnings

    monkeypatch.setattr(ray_backend, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ray_backend, "UNREADY_SECONDS", 0.05)
    monkeypatch.setattr(ray_backend, "CONTROL_SECONDS", 0.05)
    return ray_backend


class FakeSlot:
    """What a streaming call of `admit` gives back."""

    def __init__(self, first: dict[str, str] | BaseException | None) -> None:
        self._first = first
        self.is_cancelled = False

    async def __anext__(self) -> dict[str, str]:
        if self._first is None:
            await asyncio.Event().wait()
        if isinstance(self._first, BaseException):
            raise self._first
        return cast(dict[str, str], self._first)

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeAnswer:
    """What a unary call gives back."""

    def __init__(self, value: object) -> None:
        self._value = value
        self.is_cancelled = False

    def __await__(self) -> Any:
        if self._value is None:
            yield from asyncio.Event().wait().__await__()
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeHandle:
    """Any method of a deployment; remembers what it was asked and gives back one prepared thing."""

    def __init__(self, given: FakeSlot | FakeAnswer) -> None:
        self.given = given
        self.asked: list[tuple[str, tuple[object, ...]]] = []
        self._method = ""

    def options(self, method_name: str) -> FakeHandle:
        self._method = method_name
        return self

    def __getattr__(self, name: str) -> FakeHandle:
        self._method = name
        return self

    def remote(self, *arguments: object) -> FakeSlot | FakeAnswer:
        self.asked.append((self._method, arguments))
        return self.given


@pytest.fixture
async def address() -> AsyncIterator[str]:
    worker = StandIn(step_seconds=0.0)
    yield await worker.start()
    await worker.close()


def request(tokens: int = 3) -> GenerationRequest:
    return GenerationRequest("r1", (5, 6), SamplingParams(seed=1, max_tokens=tokens))


async def test_tokens_come_from_the_chosen_replicas_socket_and_the_slot_is_given_back(
    ray_backend: Any, address: str
) -> None:
    slot = FakeSlot({"tokens_address": address, "replica_id": "a"})
    handle = FakeHandle(slot)
    backend = ray_backend.RayBackend({"baseline": handle})
    chunks = [chunk async for chunk in backend.generate("baseline", request())]
    assert [chunk.finish for chunk in chunks] == [None, None, FinishReason.LENGTH]
    assert handle.asked == [("admit", ("r1",))]
    assert slot.is_cancelled
    await backend.close()


async def test_closing_early_gives_the_slot_back(ray_backend: Any, address: str) -> None:
    slot = FakeSlot({"tokens_address": address, "replica_id": "a"})
    backend = ray_backend.RayBackend({"baseline": FakeHandle(slot)})
    chunks = backend.generate("baseline", request(tokens=10**6))
    await anext(chunks)
    assert not slot.is_cancelled
    await chunks.aclose()
    assert slot.is_cancelled
    await backend.close()


async def test_a_broken_token_stream_names_the_lost_replica(ray_backend: Any) -> None:
    slot = FakeSlot({"tokens_address": "127.0.0.1:9", "replica_id": "abc"})
    backend = ray_backend.RayBackend({"baseline": FakeHandle(slot)})
    with pytest.raises(ReplicaLost, match="replica abc of 'baseline'") as lost:
        await anext(backend.generate("baseline", request()))
    assert lost.value.replica == "abc"
    assert slot.is_cancelled
    await backend.close()


def backpressure() -> BaseException:
    from ray.serve.exceptions import BackPressureError

    return BackPressureError(num_queued_requests=9, max_queued_requests=8)


def actor_died() -> BaseException:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(backpressure, Overloaded), (actor_died, ReplicaLost), (StopAsyncIteration, ReplicaLost)],
)
async def test_a_slot_that_fails_is_told_in_the_routers_words(
    ray_backend: Any, failure: Callable[[], BaseException], expected: type[FleetError]
) -> None:
    slot = FakeSlot(failure())
    backend = ray_backend.RayBackend({"baseline": FakeHandle(slot)})
    with pytest.raises(expected):
        await anext(backend.generate("baseline", request()))
    assert slot.is_cancelled


async def test_a_path_without_any_replica_is_unavailable_after_a_bounded_wait(ray_backend: Any) -> None:
    slot = FakeSlot(None)
    backend = ray_backend.RayBackend({"baseline": FakeHandle(slot)})
    with pytest.raises(Unavailable, match="no replica of path 'baseline' is ready"):
        await anext(backend.generate("baseline", request()))
    assert slot.is_cancelled


async def test_the_controllers_refusal_arrives_unchanged(ray_backend: Any) -> None:
    control = ray_backend.RayControl(FakeHandle(FakeAnswer(Conflict("one rollout at a time"))), lambda ready: None)
    with pytest.raises(Conflict, match="one rollout at a time"):
        await control.command("start", {})


async def test_a_refusal_wrapped_by_ray_is_unwrapped(ray_backend: Any) -> None:
    from ray.exceptions import RayTaskError

    wrapped = RayTaskError("command", "traceback", Conflict("one rollout at a time"))  # type: ignore[no-untyped-call]
    control = ray_backend.RayControl(FakeHandle(FakeAnswer(wrapped)), lambda ready: None)
    with pytest.raises(Conflict, match="one rollout at a time"):
        await control.command("start", {})


@pytest.mark.parametrize("failure", [actor_died, lambda: None])
async def test_a_dead_or_silent_controller_is_unavailable_and_the_call_is_withdrawn(
    ray_backend: Any, failure: Callable[[], BaseException | None]
) -> None:
    answer = FakeAnswer(failure())
    with pytest.raises(Unavailable, match="controller cannot be reached"):
        await ray_backend.RayControl(FakeHandle(answer), lambda ready: None).status()
    assert answer.is_cancelled


async def test_each_call_of_control_asks_the_method_of_its_name(ray_backend: Any) -> None:
    handle = FakeHandle(FakeAnswer({"ok": True}))
    control = ray_backend.RayControl(handle, lambda ready: None)
    await control.status()
    await control.metrics()
    await control.command("set-weight", {"weight": 5})
    assert handle.asked == [("status", ()), ("metrics", ()), ("command", ("set-weight", {"weight": 5}))]


async def test_the_client_of_a_replica_that_has_left_is_closed_when_another_comes(
    ray_backend: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []

    class Watched(ray_backend.TokenClient):  # type: ignore[misc]
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    monkeypatch.setattr(ray_backend, "TokenClient", Watched)
    leaving = StandIn(step_seconds=0.0)
    slot = FakeSlot({"tokens_address": await leaving.start(), "replica_id": "old"})
    handle = FakeHandle(slot)
    backend = ray_backend.RayBackend({"baseline": handle})
    stream = backend.generate("baseline", request(tokens=10**6))
    await anext(stream)
    await leaving.close()
    with pytest.raises(ReplicaLost):
        async for _ in stream:
            pass
    assert not closed
    handle.given = FakeSlot({"tokens_address": address, "replica_id": "new"})
    assert len([chunk async for chunk in backend.generate("baseline", request())]) == 3
    assert len(closed) == 1
    await backend.close()
