"""The seam to what records a step and runs it again: on a GPU, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from fleet.errors import FleetError
from replicas.engine.decoder import States

Step = Callable[[], States]


class NotRecorded(FleetError):
    """A step that has to be launched operation by operation."""


class RecordingFailed(NotRecorded):
    """... and so has every other one that is not recorded yet: asking again would be no use."""


class Recorder(Protocol):
    """Makes a step that is launched as a whole of one that is launched kernel by kernel."""

    def record(self, step: Step) -> Step:
        """A function that does what `step` does now, on the same memory, whatever has been written there since.

        What it returns may be overwritten by the next call, of this function or of another one from this recorder.
        Raises NotRecorded; then nothing is kept, and nothing is left of the attempt that a later step could notice.
        """


class CudaRecorder:
    """CUDA graphs that share one memory pool: one runs at a time, and its results are read before the next one runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._failed: torch.cuda.CUDAGraph | None = None
        """Never freed: what allocates pinned memory goes on asking it whether a stream is being recorded."""

    def record(self, step: Step) -> Step:
        if self._failed is not None:
            raise RecordingFailed("an earlier recording failed")
        graph = torch.cuda.CUDAGraph()
        try:
            self._run(step)
            states = self._capture(graph, step)
        except torch.OutOfMemoryError as error:
            raise NotRecorded(str(error)) from error

        def replay() -> States:
            graph.replay()
            return states

        return replay

    def _run(self, step: Step) -> None:
        """Once as it is: that makes what may not be made in a capture, such as handles, workspaces and kernels."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                step()
        finally:  # what was launched before the memory ran out is still writing to the cache
            current.wait_stream(self._stream)

    def _capture(self, graph: torch.cuda.CUDAGraph, step: Step) -> States:
        # An error that ends the capture itself comes out of torch's own exit, before that has set the stream back.
        with torch.cuda.stream(torch.cuda.current_stream()):
            try:
                # Other threads of this process may use the GPU meanwhile.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    return step()
            except torch.OutOfMemoryError:
                raise  # the capture was ended in good order
            except RuntimeError as error:
                self._failed = graph
                self._leave_pool()
                raise RecordingFailed(str(error)) from error

    def _leave_pool(self) -> None:
        """Allocate as usual again: where the end of a capture fails, torch leaves that undone."""
        # Refused where it was done after all.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
