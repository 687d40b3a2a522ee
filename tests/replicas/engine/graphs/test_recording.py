"""What a recording that goes wrong leaves behind: on a stand-in that does what torch's sources do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from replicas.engine.decoder import States
from replicas.engine.graphs.recording import CudaRecorder, NotRecorded, RecordingFailed

POOL = (0, 7)


@dataclass(eq=False)
class FakeStream:
    """Knows what it waits for."""

    waited_for: list[FakeStream] = field(default_factory=list)

    def wait_stream(self, other: FakeStream) -> None:
        self.waited_for.append(other)


@dataclass
class FakeCuda:
    """The current stream, and whether allocations go to the pool."""

    main: FakeStream = field(default_factory=FakeStream)
    side: FakeStream = field(default_factory=FakeStream)
    is_pooling: bool = False
    is_valid: bool = True
    """Whether the capture can still be ended."""
    replays: int = 0

    def __post_init__(self) -> None:
        self.current = self.main

    def replay(self) -> None:
        self.replays += 1

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        previous, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = previous

    @contextmanager
    def graph(self, graph: object, *, pool: object, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        """As `torch.cuda.graph`: where `capture_end` raises, neither stream nor pool are set back."""
        previous, self.current = self.current, stream
        self.is_pooling = True
        try:
            yield
        finally:
            if not self.is_valid:
                raise RuntimeError("operation failed due to a previous error during capture")
            self.is_pooling = False
            self.current = previous

    def end_pool(self, device: int, pool: object) -> None:
        if not self.is_pooling:
            raise RuntimeError("not currently recording to mempool_id")
        assert pool == POOL
        self.is_pooling = False


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name, stand_in in {
        "graph_pool_handle": lambda: POOL,
        "Stream": lambda: fake.side,
        "current_stream": lambda: fake.current,
        "current_device": lambda: 0,
        "stream": fake.stream,
        "graph": fake.graph,
        "CUDAGraph": lambda: fake,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_pool)
    return fake


RESULT = States(torch.ones(1), None)


def failing(cuda: FakeCuda, *, run: int, error: RuntimeError, is_valid: bool = True) -> Callable[[], States]:
    """A step whose first, second, … run fails."""
    runs = iter(range(1, 10))

    def step() -> States:
        assert cuda.current is cuda.side
        if next(runs) == run:
            cuda.is_valid = is_valid
            raise error
        return RESULT

    return step


def assert_as_before(cuda: FakeCuda) -> None:
    assert cuda.current is cuda.main
    assert not cuda.is_pooling
    assert cuda.main.waited_for[-1] is cuda.side


def test_a_step_is_run_once_and_then_captured(cuda: FakeCuda) -> None:
    replay = CudaRecorder().record(lambda: RESULT)
    assert replay() is RESULT
    assert cuda.replays == 1
    assert_as_before(cuda)


@pytest.mark.parametrize("run", [1, 2], ids=["before the capture", "in it"])
def test_a_lack_of_memory_is_over_with_the_step(cuda: FakeCuda, run: int) -> None:
    recorder = CudaRecorder()
    with pytest.raises(NotRecorded) as raised:
        recorder.record(failing(cuda, run=run, error=torch.OutOfMemoryError("2 GiB")))
    assert not isinstance(raised.value, RecordingFailed)
    assert_as_before(cuda)
    assert recorder.record(lambda: RESULT)() is RESULT


@pytest.mark.parametrize(
    ("error", "is_valid"),
    [(RuntimeError("wrong"), True), (RuntimeError("not permitted"), False), (torch.OutOfMemoryError("2 GiB"), False)],
    ids=["ended in order", "cannot be ended", "cannot be ended for lack of memory"],
)
def test_any_other_error_in_a_capture_ends_recording_and_nothing_else(
    cuda: FakeCuda, error: RuntimeError, is_valid: bool
) -> None:
    recorder = CudaRecorder()
    with pytest.raises(RecordingFailed):
        recorder.record(failing(cuda, run=2, error=error, is_valid=is_valid))
    assert_as_before(cuda)
    cuda.is_valid = True
    with pytest.raises(RecordingFailed, match="earlier"):
        recorder.record(lambda: RESULT)
    assert cuda.replays == 0


def test_an_error_of_the_step_itself_is_not_hidden(cuda: FakeCuda) -> None:
    with pytest.raises(RuntimeError, match="wrong shape"):
        CudaRecorder().record(failing(cuda, run=1, error=RuntimeError("wrong shape")))
    assert_as_before(cuda)
