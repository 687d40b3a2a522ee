"""The seam to what records a step and runs it again: on a GPU, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from fleet.errors import FleetError
from replicas.engine.decoder import States

Step = Callable[[], States]


class NotRecorded(FleetError):
    """A step that has to be launched operation by operation."""


class Recorder(Protocol):
    """Makes a step that is launched as a whole of one that is launched kernel by kernel."""

    def record(self, step: Step) -> Step:
        """A function that does what `step` does now, on the same memory, whatever has been written there since.

        What it returns may be overwritten by the next call, of this function or of another one from this recorder.
        Raises NotRecorded; then nothing is kept.
        """


class CudaRecorder:
    """CUDA graphs that share one memory pool: one runs at a time, and its results are read before the next one runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, step: Step) -> Step:
        try:
            self._run(step)
        except torch.OutOfMemoryError as error:
            raise NotRecorded(str(error)) from error
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of this process may use the GPU meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                states = step()
        except RuntimeError as error:  # what goes wrong in a capture ends it with an error of its own
            raise NotRecorded(str(error)) from error

        def replay() -> States:
            graph.replay()
            return states

        return replay

    def _run(self, step: Step) -> None:
        """Once as it is: that makes what may not be made in a capture, such as handles, workspaces and kernels."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
        torch.cuda.current_stream().wait_stream(self._stream)
