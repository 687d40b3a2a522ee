"""Who is alive? Replicas and routers as they last reported themselves, and replicas that die one after another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from canary.plan import PathFacts
from canary.windows import ArmUsage, AtClose
from fleet.traffic import CRASH_LOOP_REPLICAS, CRASH_LOOP_SECONDS, HardTrip, HardTripKind, ReplicaReport, RouterReport

STALE_SECONDS = 5.0
"""Without news for so long a replica or router counts as gone."""
FULL_SHARE = 0.9
"""Of the sequences that it can run at once: more makes a replica saturated."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica's last report and when it came."""

    report: ReplicaReport
    at: float


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """A router's last report, without its tallies, and when it came."""

    router_id: str
    applied_split: int
    in_flight: Mapping[str, int]
    queued: int
    sequence: int
    at: float
    pid: int = 0
    open: Mapping[str, int] = field(default_factory=dict)
    typical: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class News:
    """What a replica's report says beyond its last one."""

    preemptions: int = 0
    draft_link: Mapping[str, int] = field(default_factory=dict)
    """Event -> how often since; only those that happened."""
    trips: tuple[HardTrip, ...] = ()


@dataclass(slots=True)
class FleetView:
    """Every method gets the time from its caller, in seconds of one monotonic clock."""

    paths: Mapping[str, PathFacts]
    since: float = -STALE_SECONDS
    """When this view began to be filled."""
    replicas: dict[str, Seen] = field(default_factory=dict)
    routers: dict[str, RouterSeen] = field(default_factory=dict)
    losses: deque[tuple[float, str, str]] = field(default_factory=deque)
    """(when, path, replica id) of replicas that went while their path had too few."""
    unwitnessed: list[Seen] = field(default_factory=list)
    """Those of which nobody on the same machine has been heard since they were missed: when that was, with their last
    words."""
    forgotten: dict[str, float] = field(default_factory=dict)
    """Path -> when its losses were last forgotten; whoever was not heard since had gone before."""

    def replica_reported(self, report: ReplicaReport, now: float) -> News:
        """Take in a report; the news hold a trip if the replica ran out of memory since its last."""
        before = self.replicas.get(report.replica_id)
        self.replicas[report.replica_id] = Seen(report, now)
        if before is None:
            return News()
        new = report.out_of_memory - before.report.out_of_memory
        detail = f"replica {report.replica_id} could not allocate memory"
        return News(
            preemptions=max(0, report.preemptions - before.report.preemptions),
            draft_link=dict(Counter(report.draft_link) - Counter(before.report.draft_link)),
            trips=(HardTrip(report.path, HardTripKind.OOM, detail),) if new > 0 else (),
        )

    def router_reported(self, report: RouterReport, now: float) -> None:
        """Take in a report; one that is sent again says that its router lives, and nothing new."""
        before = self.routers.get(report.router_id)
        if before is not None and report.sequence <= before.sequence:
            self.routers[report.router_id] = replace(before, at=now)
            return
        self.routers[report.router_id] = RouterSeen(
            report.router_id,
            report.applied_split,
            report.in_flight,
            report.queued,
            report.sequence,
            now,
            report.pid,
            report.open,
            report.typical,
        )

    def expire(self, now: float) -> list[HardTrip]:
        """Forget who has been silent; returns a trip for every path whose replicas die in a row, or for want of memory.

        A replica that goes while enough others are ready was retired, not lost.
        """
        for router_id in [key for key, seen in self.routers.items() if now - seen.at > STALE_SECONDS]:
            del self.routers[router_id]
        for replica_id in [key for key, seen in self.replicas.items() if now - seen.at > STALE_SECONDS]:
            gone = self.replicas.pop(replica_id)
            path = gone.report.path
            went_since = gone.at >= self.forgotten.get(path, gone.at)
            if went_since and path in self.paths and self.ready(path) < self.paths[path].replicas:
                self.losses.append((now, path, replica_id))
                self.unwitnessed += [Seen(gone.report, now)] if gone.report.oom_scope else []
        while self.losses and now - self.losses[0][0] > CRASH_LOOP_SECONDS:
            self.losses.popleft()
        return [*self._killed(now), *(trip for path in self.paths for trip in self._loop(path, now))]

    def _loop(self, path: str, now: float) -> list[HardTrip]:
        lost = sorted({replica for _, of, replica in self.losses if of == path})
        if len(lost) < CRASH_LOOP_REPLICAS:
            return []
        self.forget_losses(path, now)
        detail = f"{len(lost)} replicas lost within {CRASH_LOOP_SECONDS:g} s: {', '.join(lost)}"
        return [HardTrip(path, HardTripKind.CRASH_LOOP, detail)]

    def _killed(self, now: float) -> list[HardTrip]:
        """A trip for every lost replica on whose machine the kernel has killed since its last report.

        The next report from there decides: a neighbour's at once, else that of whoever comes in its place.
        """
        trips, waiting = [], []
        for gone in self.unwitnessed:
            kills = self._kills_since(gone)
            if kills is None and now - gone.at <= CRASH_LOOP_SECONDS:
                waiting.append(gone)
            if kills is not None and kills > 0:
                detail = f"replica {gone.report.replica_id} was lost while the kernel killed there for want of memory"
                trips.append(HardTrip(gone.report.path, HardTripKind.OOM, detail))
        self.unwitnessed = waiting
        return trips

    def _kills_since(self, gone: Seen) -> int | None:
        """None where nobody on its machine was heard of since it was missed."""
        there = [seen.report for seen in self.replicas.values() if seen.at > gone.at]
        counts = [report.oom_kills for report in there if report.oom_scope == gone.report.oom_scope]
        return max(counts) - gone.report.oom_kills if counts else None

    def forget_losses(self, path: str, now: float) -> None:
        """Whatever it lost so far, missed already or not, counts against nothing from now on."""
        self.forgotten[path] = now
        self.losses = deque(loss for loss in self.losses if loss[1] != path)
        self.unwitnessed = [gone for gone in self.unwitnessed if gone.report.path != path]

    def of(self, path: str) -> list[Seen]:
        """The path's living replicas, by id."""
        return [self.replicas[key] for key in sorted(self.replicas) if self.replicas[key].report.path == path]

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """What measurements of each path depend on; parts in which its replicas differ hold every value."""
        combined = {path: _combined([seen.report.fingerprint for seen in self.of(path)]) for path in self.paths}
        return {
            path: parts | {"path.replicas": str(self.paths[path].replicas)} if parts else {}
            for path, parts in combined.items()
        }

    def ready(self, path: str) -> int:
        return len(self.of(path))

    def ready_by_path(self, now: float) -> dict[str, int]:
        """Ready replicas by path; empty until a controller that has just started can know them all."""
        if now - self.since < STALE_SECONDS:
            return {}
        return {path: self.ready(path) for path in self.paths}

    def in_flight(self, path: str) -> int:
        """Streams open on the path, by all living routers."""
        return sum(router.in_flight.get(path, 0) for router in self.routers.values())

    def typical_in_flight(self, path: str) -> int:
        """Those of them that the rules alone sent there."""
        return sum(router.typical.get(path, 0) for router in self.routers.values())

    def open_elsewhere(self, router_id: str) -> dict[str, int]:
        """Streams open by path, through all living routers but this one."""
        counts: Counter[str] = Counter()
        for router in self.routers.values():
            if router.router_id != router_id:
                counts.update(router.in_flight)
        return dict(counts)

    def usage(self, path: str, full: float) -> ArmUsage:
        """One look at the path's replicas; a KV cache with more than `full` (0 to 1) in use is under pressure."""
        reports = [seen.report for seen in self.of(path)]
        return ArmUsage(
            looks=1,
            samples=len(reports),
            saturated=sum(_is_saturated(report) for report in reports),
            pressed=sum(report.kv_used_tokens > full * report.kv_total_tokens for report in reports),
            gpus=len(reports) * (self.paths[path].gpus or 1.0),
        )

    def at_close(self) -> AtClose:
        """What a window notes when it closes."""
        waiting: Counter[str] = Counter()
        for router in self.routers.values():
            waiting.update(router.open)
        return AtClose(dict(waiting), tuple(self.routers))

    def follows(self, version: int) -> bool:
        """Whether there are routers and all of them route by this split or a later one."""
        return bool(self.routers) and all(router.applied_split >= version for router in self.routers.values())


def _is_saturated(report: ReplicaReport) -> bool:
    """It has a queue, or nearly as much as it can run at once."""
    return report.waiting > 0 or (report.running_limit > 0 and report.running >= FULL_SHARE * report.running_limit)


def _combined(fingerprints: Sequence[Sequence[tuple[str, str]]]) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for part, value in (pair for fingerprint in fingerprints for pair in fingerprint):
        values.setdefault(part, set()).add(value)
    return {part: " | ".join(sorted(found)) for part, found in values.items()}
