"""The router's two seams to the outside: replicas that generate, and the controller that decides the split."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from fleet.generation import GenerationRequest, TokenChunk
from fleet.traffic import ReportReply, RouterReport


class Backend(Protocol):
    """All paths' replicas. `tests/fakes.py` has the fake; `deploy/ray_backend.py` the real one."""

    def generate(self, path: str, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Stream one choice from a replica of the path.

        The generator ends after a chunk with `finish`. Closing it early cancels the generation down to
        the draft. Raises `Unavailable` (no replica), `Overloaded` (the engine's queue is full),
        `OutOfMemory`, `ReplicaLost` (died, hung, shut down, internal error) or `BadRequest`.
        """

    def replicas(self, path: str) -> int:
        """How many replicas of the path are ready, as far as this router knows."""


class Control(Protocol):
    """The controller, wherever it runs. Every call raises `Unavailable` when it cannot be reached."""

    async def report(self, report: RouterReport) -> ReportReply:
        """Hand over what was seen; learn the split. Safe to repeat."""

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an admin command (`start`, `pause`, …); the answer is JSON-ready."""

    async def status(self) -> Mapping[str, Any]:
        """The fleet and its rollout, JSON-ready."""

    async def metrics(self) -> bytes:
        """The whole fleet's metrics in Prometheus text format."""
