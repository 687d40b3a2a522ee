"""The controller as a Serve deployment: one process that judges, its journal on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from deploy.manifest import model_name
from deploy.serve_args import ControllerArgs
from fleet.clock import SystemClock
from fleet.errors import Unavailable
from fleet.traffic import ReplicaReport, ReportReply, RouterReport


class CanaryActor:
    """Hosts `Controller`. Killed at any moment, its successor goes on from the journal.

    Every method runs on the event loop, so the controller is never entered twice at once.
    """

    async def __init__(self, args: ControllerArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        # Serve builds every application in a short-lived process of its own; the statistics stay out of it.
        from canary.controller import Controller
        from canary.plan import PathFacts

        self._controller = Controller.open(
            args.controller,
            paths={name: PathFacts(item.replicas, item.is_speculative, item.gpus) for name, item in args.paths.items()},
            stable=args.stable,
            model_name=model_name(args.model),
            clock=SystemClock(),
        )
        self._ticking = asyncio.create_task(self._controller.run())

    async def report(self, report: RouterReport) -> ReportReply:
        return self._controller.report(report)

    async def replica_report(self, report: ReplicaReport) -> None:
        self._controller.replica_report(report)

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._controller.command(name, arguments)

    async def status(self) -> Mapping[str, Any]:
        return self._controller.status()

    async def metrics(self) -> bytes:
        return self._controller.metrics()

    async def check_health(self) -> None:
        """Unhealthy once the tick has ended: a controller that no longer judges must be replaced."""
        if self._ticking.done():
            raise Unavailable(f"the controller's tick has ended: {self._ticking!r}")

    async def __del__(self) -> None:
        if hasattr(self, "_ticking"):
            self._ticking.cancel()
            self._controller.close()
