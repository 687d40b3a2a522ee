"""One replica of a path on Ray: a target worker, the slots Serve counts, and the draft worker beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from deploy.draft_keeper import DraftKeeper, with_draft
from deploy.manifest import CONTROLLER_APP, CONTROLLER_DEPLOYMENT
from deploy.oom_kills import OomCounter, find_counter
from deploy.serve_args import PathArgs
from fleet.errors import ReplicaLost
from fleet.traffic import ReplicaReport

REPORT_SECONDS = 1.0
ARRIVAL_SECONDS = 10.0

logger = logging.getLogger("ray.serve")


def completed(
    report: ReplicaReport, parts: Mapping[str, str], draft: DraftKeeper | None, counter: OomCounter | None
) -> ReplicaReport:
    """The worker's report with what it cannot know itself: its draft's process, the kernel's kills, the fingerprint.

    `parts` are those of the fingerprint without the draft's machine.
    """
    if draft is not None:
        report = replace(report, draft_pid=draft.pid, out_of_memory=report.out_of_memory + draft.killed)
        parts = with_draft(parts, draft.hardware)
    if counter is not None:
        report = replace(report, oom_scope=counter.scope, oom_kills=counter.read())
    return replace(report, fingerprint=tuple(parts.items()))


class PathReplica:
    """Wraps `TargetWorker` as a Serve deployment; with a draft worker it holds a two-bundle placement group."""

    async def __init__(self, args: PathArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        # Serve builds every application in a short-lived process of its own; torch has no place there.
        from deploy.evidence.fingerprint import fingerprint_of
        from replicas.draft_worker import DraftSettings
        from replicas.target_worker import TargetWorker, WorkerSettings

        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._worker = await TargetWorker.start(
            WorkerSettings(
                path=args.path,
                model=args.model,
                engine=args.engine,
                speculative=args.speculative,
                drill=args.drill,
                host=args.token_host or ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
            )
        )
        self._fingerprint = await asyncio.to_thread(fingerprint_of, args, logger.info)
        self._oom_counter = find_counter()
        self._draft: DraftKeeper | None = None
        self._tasks = [asyncio.create_task(self._report(), name="report")]
        if self._worker.verify_address is not None and args.speculative is not None:
            settings = DraftSettings(
                model=args.model,
                speculative=args.speculative,
                engine=args.engine,
                verify_address=self._worker.verify_address,
                drill=args.drill,
            )
            self._draft = DraftKeeper(settings, args.draft, self._oom_counter)
            self._tasks.append(asyncio.create_task(self._draft.run(), name="draft"))

    async def admit(self, request_id: str) -> AsyncIterator[dict[str, str]]:
        """Hold one slot for a request whose tokens travel over the token socket.

        The first and only item says where that socket is. The call then stays open until the stream has ended, or
        has not arrived within 10 s, so Serve's limits, autoscaling and graceful shutdown see the streams that exist.
        """
        yield {"tokens_address": self._worker.tokens_address, "replica_id": self._replica_id}
        await self._worker.finished(request_id, ARRIVAL_SECONDS)

    async def check_health(self) -> None:
        """Generate a real token. The draft's health is not asked: it may die without failing a request."""
        for task in self._tasks:
            if task.done():
                raise ReplicaLost(f"a task of the replica has ended: {task!r}")
        await self._worker.check_health()

    async def __del__(self) -> None:
        for task in getattr(self, "_tasks", []):
            task.cancel()
        if draft := getattr(self, "_draft", None):
            draft.stop()
        if worker := getattr(self, "_worker", None):
            await worker.close(grace_seconds=0.0)

    async def _report(self) -> None:
        """Tell the controller every second how this replica is; a controller that is away misses some news."""
        handle = serve.get_deployment_handle(CONTROLLER_DEPLOYMENT, CONTROLLER_APP, _check_exists=False)
        while True:
            report = self._worker.report(self._replica_id)
            if self._draft is not None:
                self._draft.observe(report.draft)
            report = completed(report, self._fingerprint, self._draft, self._oom_counter)
            try:
                async with asyncio.timeout(2 * REPORT_SECONDS):
                    await handle.replica_report.remote(report)
            except (RayError, RayServeException, TimeoutError) as error:
                logger.debug("controller did not take the replica report: %s", error)
            await asyncio.sleep(REPORT_SECONDS)
