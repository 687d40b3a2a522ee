"""The seam to what records a step and runs it again: on a GPU, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from replicas.engine.decoder import States

Step = Callable[[], States]


class Recorder(Protocol):
    """Makes a step that is launched as a whole of one that is launched kernel by kernel."""

    def record(self, step: Step) -> Step:
        """A function that does what `step` does now, on the same memory, whatever has been written there since.

        What it returns may be overwritten by the next call, of this function or of another one from this recorder.
        May raise torch.OutOfMemoryError; then nothing is kept.
        """


class CudaRecorder:
    """CUDA graphs that share one memory pool: one runs at a time, and its results are read before the next one runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, step: Step) -> Step:
        # A first run makes what may not be made while a graph is captured: handles, workspaces, kernels.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may use the GPU meanwhile, as long as this one does nothing that waits.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            states = step()

        def replay() -> States:
            graph.replay()
            return states

        return replay
