"""Keeps one draft worker alive beside its target: starts it in the second bundle, restarts it with back-off."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.oom_kills import OomCounter, RecentKills, find_counter
from fleet.config import DraftResources

if TYPE_CHECKING:
    from replicas.draft_worker import DraftSettings

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
STEADY_SECONDS = 60.0
LOST_SECONDS = 15.0

logger = logging.getLogger("ray.serve")


def restart_delay(failures: int) -> float:
    """Seconds to wait before the next start after so many failures in a row (≥ 1): 0.5, 1, 2, … up to 30."""
    return float(min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 16)))


def with_draft(parts: Mapping[str, str], draft_hardware: Mapping[str, str] | None) -> dict[str, str]:
    """The fingerprint of a replica with the machine on which its draft worker runs, which may be another one.

    Empty until the draft has told it: a part that is missing would pass for a change.
    """
    if draft_hardware is None:
        return {}
    return {**parts, **{f"draft.{part}": value for part, value in draft_hardware.items()}}


class DraftPresence:
    """Does the target still see its draft? A draft that has not joined yet is loading, not lost."""

    def __init__(self) -> None:
        self._has_joined = False
        self._lost_since: float | None = None

    def is_gone(self, health: str, now: float) -> bool:
        """Whether a draft that had joined has been lost to its target for 15 s, by one look more at `now`."""
        if health != "lost":
            self._has_joined = self._has_joined or health == "healthy"
            self._lost_since = None
            return False
        if not self._has_joined:
            return False
        if self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since >= LOST_SECONDS


class DraftActor:
    """The draft worker's process on Ray. It imports torch late, to keep it out of the application builders."""

    async def pid(self) -> int:
        return os.getpid()

    async def oom_scope(self) -> str:
        """What the kernel's kills are counted for, where it runs; empty where they are not."""
        counter = find_counter()
        return counter.scope if counter is not None else ""

    async def hardware(self) -> dict[str, str]:
        """The machine it runs on, as a part of what is measured with it."""
        from deploy.evidence.fingerprint import hardware

        return hardware()

    async def run(self, settings: DraftSettings) -> None:
        """Draft until the connection to the target has ended for good."""
        from replicas.draft_worker import DraftWorker

        worker = await DraftWorker.start(settings)
        try:
            await worker.wait_closed()
        finally:
            await worker.close()


class DraftKeeper:
    """Owns the draft actor of one replica. Its failures are logged and retried, never raised."""

    def __init__(self, settings: DraftSettings, resources: DraftResources, oom_counter: OomCounter | None) -> None:
        """`oom_counter` is the one of this process; it tells of drafts that run in its scope."""
        self._settings = settings
        self._resources = resources
        self._kills = RecentKills(oom_counter)
        self._actor: ActorHandle[DraftActor] | None = None
        self._presence = DraftPresence()
        self.pid: int | None = None
        self.hardware: dict[str, str] | None = None
        """Of the machine that the draft runs on, or last ran on; None before it has told it."""
        self.killed = 0
        """Drafts that died while the kernel killed for want of memory."""

    async def run(self) -> None:
        """Start the draft, and start it again whenever it ends."""
        failures = 0
        while True:
            started = time.monotonic()
            await self._run_once()
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            await asyncio.sleep(restart_delay(failures))

    def observe(self, health: str) -> None:
        """The target's view of the draft, every second. One that joined and then stays lost hangs: it is restarted."""
        self._kills.look()
        if self._actor is not None and self._presence.is_gone(health, time.monotonic()):
            logger.warning("draft worker %s is lost to its target: ending it", self.pid)
            self.stop()

    def stop(self) -> None:
        """End the draft's process, if there is one."""
        actor, self._actor, self.pid = self._actor, None, None
        if actor is not None:
            ray.kill(actor)

    async def _run_once(self) -> None:
        self._presence = DraftPresence()
        self._actor = self._create()
        oom_scope = ""
        try:
            self.pid = await self._actor.pid.remote()
            oom_scope = await self._actor.oom_scope.remote()
            self.hardware = await self._actor.hardware.remote()
            await self._actor.run.remote(self._settings)
        except RayError as error:
            reason = getattr(error, "cause", None) or str(error).partition("\n")[0]
            logger.warning("draft worker %s ended: %s", self.pid, reason)
            self.killed += isinstance(error, RayActorError) and self._kills.happened(oom_scope)
        finally:
            self.stop()

    def _create(self) -> ActorHandle[DraftActor]:
        group = ray.util.get_current_placement_group()
        options: dict[str, Any] = {"num_cpus": self._resources.num_cpus, "num_gpus": self._resources.num_gpus}
        if isinstance(group, PlacementGroup):
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
        return cast("ActorHandle[DraftActor]", ray.remote(DraftActor).options(**options).remote())
