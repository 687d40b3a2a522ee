"""How traffic is split and what was seen of it: the words shared by router and canary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleet.histogram import LogHistogram


class Outcome(StrEnum):
    """How a request ended. The router alone decides it; HTTP 200 is not an outcome."""

    DONE = "done"
    TRUNCATED = "truncated"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SHED = "shed"
    FAILED = "failed"


class SamplingMode(StrEnum):
    GREEDY = "greedy"
    SAMPLED = "sampled"


_PROMPT_BUCKETS = ((512, "short"), (4096, "medium"))


def stratum_of(prompt_tokens: int, sampling: SamplingMode) -> str:
    """The kind of request, such as 'greedy/short': acceptance differs between kinds without any defect."""
    bucket = next((name for limit, name in _PROMPT_BUCKETS if prompt_tokens < limit), "long")
    return f"{sampling}/{bucket}"


class HardTripKind(StrEnum):
    """Events that need no statistics."""

    OOM = "oom"
    CRASH_LOOP = "crash_loop"


CRASH_LOOP_REPLICAS = 3
"""Distinct replicas of a path, lost within `CRASH_LOOP_SECONDS`."""
CRASH_LOOP_SECONDS = 120.0
COMMIT_SECONDS = 0.1
"""The controller stores reports, and so acknowledges them, no more often than this however many routers there are."""


@dataclass(frozen=True, slots=True)
class WinningCell:
    """Where evidence says that speculation pays: a sampling mode, and how much the canary has open."""

    sampling: SamplingMode
    above: int
    """above < open requests on the canary's path ≤ up_to, the new one included."""
    up_to: int
    draft_length: int | None = None
    """The most tokens to draft in a round; None leaves it to the path."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Which requests take part in a rollout; None means no bound. The rest stays on stable."""

    max_prompt_tokens: int | None = None
    min_max_tokens: int | None = None
    sampling: SamplingMode | None = None
    tenants: tuple[str, ...] = ()
    """API-key names or `user` values; empty means everyone."""
    headers: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs that must all be present."""
    cells: tuple[WinningCell, ...] | None = None
    """Where speculation wins by the evidence; None asks for none, empty means nowhere."""

    def cell_of(self, sampling: SamplingMode, open_requests: int) -> WinningCell | None:
        """The winning cell of a request, with so many open on the canary's path, itself included."""
        here = (cell for cell in self.cells or () if cell.sampling is sampling)
        return next((cell for cell in here if cell.above < open_requests <= cell.up_to), None)


@dataclass(frozen=True, slots=True)
class Split:
    """Who serves whom. `canary` None sends everything to `stable`."""

    version: int
    stable: str
    canary: str | None = None
    canary_percent: float = 0.0
    """0 ≤ canary_percent ≤ 100, of the eligible requests."""
    salt: str = ""
    """Hashed with the assignment key; constant for a whole rollout, so that raising the weight moves nobody back."""
    eligible: Eligibility = Eligibility()


def control_percent(canary_percent: float) -> float:
    """Share of the control, stable's second sample: as large as the canary's, but at most half of what stable has."""
    return min(canary_percent, (100.0 - canary_percent) / 2.0)


@dataclass(frozen=True, slots=True)
class HardTrip:
    """A failure that takes the canary out at once, in the router that sees it and then everywhere."""

    path: str
    kind: HardTripKind
    detail: str


@dataclass(slots=True)
class PathTally:
    """What happened to the requests assigned to one path since the last report; tallies add up exactly.

    `itl`, `ttft`, `tpot`, `gap`, `e2e` and `queue` are in seconds, as defined in `router/stopwatch.py`.
    Counts are by *assigned* path: a request that failed over is still the canary's.
    """

    assigned: int = 0
    """Eligible requests that the hash gave to this path."""
    newcomers: int = 0
    """Those whose assignment key the router had not seen before in the rollout: its independent draws of a path."""
    outcomes: dict[str, int] = field(default_factory=dict)
    fallbacks: int = 0
    """Requests whose path failed and that went on elsewhere."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    rounds: int = 0
    """Rounds that verified at least one drafted token."""
    drafted: int = 0
    accepted: int = 0
    empty_rounds: int = 0
    """Rounds of a speculating path without a drafted token: draft length 0, context limit, or late."""
    late_rounds: int = 0
    rejected_rounds: int = 0
    """Rounds with drafted > 0 and accepted = 0."""
    accepted_at: dict[int, int] = field(default_factory=dict)
    """Drafted position (0-based) -> how often it was accepted."""
    request_acceptance: LogHistogram = field(default_factory=LogHistogram)
    """One value per finished request: 1 + accepted/drafted (shifted so that 0 has a bucket)."""
    acceptance_by: dict[str, LogHistogram] = field(default_factory=dict)
    """`request_acceptance` by `stratum_of` the request, of those that were routed by the rules alone."""
    stalled: int = 0
    """Full seconds of silence of streams in flight. After a stream's first token each also adds one value to `itl`."""
    waiting: LogHistogram = field(default_factory=LogHistogram)
    """Seconds waited so far, one value per full second that a stream waits for its first token."""
    silence: LogHistogram = field(default_factory=LogHistogram)
    """Seconds since the last chunk, one value per full second of silence after a stream's first token."""
    stall: LogHistogram = field(default_factory=LogHistogram)
    """1 + `stall`, one value per finished stream and one per full second of silence after its first token."""
    finish_reasons: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    """Completed requests by `fleet.traffic_kinds.kind_of`, of those that the evidence should stand for."""
    itl: LogHistogram = field(default_factory=LogHistogram)
    ttft: LogHistogram = field(default_factory=LogHistogram)
    tpot: LogHistogram = field(default_factory=LogHistogram)
    gap: LogHistogram = field(default_factory=LogHistogram)
    e2e: LogHistogram = field(default_factory=LogHistogram)
    queue: LogHistogram = field(default_factory=LogHistogram)

    def merge(self, other: PathTally, times: int = 1) -> None:
        """Add what the other counted; with `times` = -1 take out what is known to be a part of this."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for name in _TABLES:
            mine, theirs = getattr(self, name), getattr(other, name)
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + times * count
        for name in _HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name), times)
        for stratum, histogram in other.acceptance_by.items():
            self.acceptance_by.setdefault(stratum, LogHistogram()).merge(histogram, times)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        value |= {name: {str(k): v for k, v in getattr(self, name).items()} for name in _TABLES}
        value |= {name: getattr(self, name).to_json() for name in _HISTOGRAMS}
        value["acceptance_by"] = {stratum: histogram.to_json() for stratum, histogram in self.acceptance_by.items()}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PathTally:
        """What an earlier version did not count is nothing."""
        tally = cls()
        for name in _COUNTS:
            setattr(tally, name, int(value.get(name, 0)))
        tally.outcomes = {str(k): int(v) for k, v in value["outcomes"].items()}
        tally.finish_reasons = {str(k): int(v) for k, v in value["finish_reasons"].items()}
        tally.kinds = {str(k): int(v) for k, v in value.get("kinds", {}).items()}
        tally.accepted_at = {int(k): int(v) for k, v in value["accepted_at"].items()}
        for name in _HISTOGRAMS:
            if name in value:
                setattr(tally, name, LogHistogram.from_json(value[name]))
        strata = value.get("acceptance_by", {})
        tally.acceptance_by = {str(stratum): LogHistogram.from_json(item) for stratum, item in strata.items()}
        return tally


_COUNTS = (
    "assigned",
    "newcomers",
    "fallbacks",
    "prompt_tokens",
    "output_tokens",
    "rounds",
    "drafted",
    "accepted",
    "empty_rounds",
    "late_rounds",
    "rejected_rounds",
    "stalled",
)
_TABLES = ("outcomes", "accepted_at", "finish_reasons", "kinds")
_HISTOGRAMS = (
    "request_acceptance",
    "itl",
    "ttft",
    "tpot",
    "gap",
    "e2e",
    "queue",
    "waiting",
    "silence",
    "stall",
)


@dataclass(frozen=True, slots=True)
class RouterReport:
    """One router's news since its last acknowledged report.

    `compared` holds the requests that are part of the comparison (eligible, not overridden);
    `served` holds everything, for `/metrics`. Reports of one router are numbered from 1 and are
    sent again, unchanged, until acknowledged, so that each counts exactly once.
    """

    router_id: str
    sequence: int
    applied_split: int
    """Version of the split this router routes by."""
    compared: Mapping[str, PathTally]
    served: Mapping[str, PathTally]
    hard_trips: tuple[HardTrip, ...] = ()
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Streams open now, by serving path."""
    open: Mapping[str, int] = field(default_factory=dict)
    """Compared requests open now, by the path they were assigned to."""
    control: Mapping[str, PathTally] = field(default_factory=dict)
    """The part of `compared` whose users serve as a second sample of stable; see `control_percent`."""
    queued: int = 0
    pid: int = 0
    """The router's process, for people who look for it."""
    typical: Mapping[str, int] = field(default_factory=dict)
    """The part of `in_flight` that was routed by the rules alone: what evidence should stand for."""


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The controller's answer: the split to route by, and up to which report everything is safely stored."""

    split: Split
    acknowledged: int
    ready: Mapping[str, int] = field(default_factory=dict)
    """Ready replicas by path; a path that is missing is not known yet."""
    open_elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Streams open now through the other routers, by path."""


DRAFT_LINK_EVENTS = ("rounds", "late", "stale", "wrong", "reopened", "refused_drafts", "breaker_openings")
"""What can happen between a target and its draft worker, as `SessionCounters` of the verify session counts it."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica's state of health, sent about every second."""

    path: str
    replica_id: str
    pid: int
    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    preemptions: int
    output_tokens: int
    draft: str = "none"
    """none, healthy, degraded (decoding alone for now) or lost."""
    draft_pid: int | None = None
    draft_seconds: float = 0.0
    """Mean time the draft needed per round, over the last reports."""
    verify_seconds: float = 0.0
    """Mean time of a target step without prefill since the last report; 0 where there was none."""
    accept_seconds: float = 0.0
    """The part of it after the forward pass, sampling and accepting; 0 where that is not known."""
    wire_seconds: float = 0.0
    out_of_memory: int = 0
    running_limit: int = 0
    """Sequences that can run at once; 0 where that is not known."""
    draft_tokens: int = 0
    """Levels of the longest draft of a round; 0 where it does not speculate."""
    may_pause_drafting: bool = False
    """It stops drafting where that is measured not to pay; False of lookups, which often find nothing to draft."""
    fingerprint: tuple[tuple[str, str], ...] = ()
    """(part, value) of everything that measurements of this replica depend on."""
    draft_link: Mapping[str, int] = field(default_factory=dict)
    """How often each of `DRAFT_LINK_EVENTS` has happened; empty without a draft worker."""
    oom_scope: str = ""
    """The machine or container for which `oom_kills` counts; empty where the kernel does not tell."""
    oom_kills: int = 0
    """Processes that the kernel has killed there for want of memory."""
    gpu_memory_bytes: int = 0
    """Most that the target's process has had allocated on its GPU since it started; 0 without a GPU."""
