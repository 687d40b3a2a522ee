"""What does the controller say about the fleet? The JSON schema of `status()` and of every command's answer."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ReplicaStatus(TypedDict):
    """One running copy of a path, as it last reported itself."""

    replica_id: str
    pid: int
    draft: str
    """none, healthy, degraded or lost."""
    draft_pid: int | None
    running: int
    waiting: int
    age_seconds: float
    """Since its last report."""


class PathStatus(TypedDict):
    """One serving path."""

    path: str
    role: str
    """stable, canary or idle."""
    is_speculative: bool
    replicas_ready: int
    replicas_wanted: int
    draft: str
    """The worst of its replicas: none < healthy < degraded < lost."""
    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    in_flight: int
    """Streams open now, by the routers' count."""
    tokens_per_second: float
    """Output tokens over the last ten seconds or so."""
    acceptance: float | None
    """accepted/drafted over the same time; None where nothing was drafted."""
    draft_length: float | None
    """Mean tokens drafted a round over the last time in which the path was busy; None before that."""
    drafting_note: str
    """Why a speculative path drafts hardly anything; empty where it drafts."""
    replicas: list[ReplicaStatus]
    fingerprint: dict[str, str]
    """Part -> value of everything that measurements of the path depend on; empty without replicas."""


class RouterStatus(TypedDict):
    """One router replica."""

    router_id: str
    pid: int
    applied_split: int
    """Version of the split it routes by; the fleet's is in FleetStatus.split."""
    age_seconds: float
    in_flight: int
    queued: int


class SplitStatus(TypedDict):
    """Who serves whom."""

    version: int
    stable: str
    canary: str | None
    canary_percent: float


class VerdictStatus(TypedDict):
    """What one guardrail says, with its numbers."""

    guardrail: str
    level: str
    """pass, insufficient, no_data or fail."""
    reason: str
    unit: str
    """Of estimate, interval and limit: percent (relative change), points (percentage points), ratio or count."""
    estimate: float | None
    """percent and points are fractions: 0.12 prints as +12 % or +12 pp."""
    interval: tuple[float | None, float | None] | None
    """Anytime-valid 95 % interval; None at an end means unbounded, None as a whole means too few samples."""
    limit: float | None
    e_value: float | None
    """Evidence against "the canary is within its limit"."""
    threshold: float | None
    """The evidence at which the guardrail trips."""
    samples: int
    needed: int | None
    """How many more samples a verdict needs; 0 when it has enough, None where that cannot be said."""
    eta_seconds: float | None
    trip_eta_seconds: float | None
    """When it will trip if the evidence keeps growing as it has; None where it does not grow."""


class ReadingStatus(TypedDict):
    """One number behind a verdict."""

    name: str
    """An arm, or a kind of request."""
    value: float | None
    unit: str
    samples: int
    limit: float | None


class Explanation(TypedDict):
    """How one guardrail comes to its verdict."""

    rollout: str
    attempt: int
    state: str
    weight: float
    verdict: VerdictStatus
    asks: str
    """The question it answers."""
    sample: str
    """What one observation is."""
    method: str
    """The test, with its source."""
    ignores: str
    """What does not count."""
    acts: str
    """What happens when it trips."""
    error_chance: float | None
    """That the guardrail ever trips on `innocent`, in the steps, while it waits and in a watch of any length after
    promotion together; None where no statistics are needed."""
    innocent: str
    readings: list[ReadingStatus]
    note: str
    """Of which time the numbers are, and why an interval is missing; empty where there is nothing to say."""


class StepStatus(TypedDict):
    """One step of the plan."""

    weight: float
    bake_seconds: float


class RolloutStatus(TypedDict):
    """The present rollout, or the last one."""

    id: str
    attempt: int
    stable: str
    canary: str
    state: str
    """preparing, baking, paused, holding, promoted, rolled_back or aborted."""
    reason: str
    """Why it is in this state, in one line."""
    waiting_for: str | None
    """What keeps it from the next step although the bake is over; exit code 5 when time runs out."""
    step: int
    """1-based."""
    steps: list[StepStatus]
    weight_set: float
    """Percent of eligible requests that the split gives to the canary."""
    weight_realised: float | None
    """Percent it really got since the weight last changed; None before the first request."""
    requests_assigned: int
    """Requests of both paths that `weight_realised` is the share of."""
    bake_elapsed_seconds: float
    bake_left_seconds: float
    windows: int
    """Windows judged in this step, and how many it needs."""
    windows_needed: int
    requests: int
    """Canary requests ended in this step, and how many it needs."""
    requests_needed: int
    verdicts: list[VerdictStatus]
    started_at: float
    """Seconds since the Unix epoch."""
    ended_at: float | None
    plan: dict[str, Any]
    """As it was given."""


class DriftStatus(TypedDict):
    """One reason why evidence no longer holds."""

    reason: str
    """fleet, traffic_mix, acceptance or concurrency."""
    detail: str
    value: float | None
    limit: float | None


class EvidenceStatus(TypedDict):
    """The evidence that the rollout rests on, compared with what is served."""

    folder: str
    created: float
    """Seconds since the Unix epoch."""
    canary: str
    is_stale: bool
    drifts: list[DriftStatus]
    renew: str
    """The command that measures again."""


class FleetStatus(TypedDict):
    """The answer to `status()`."""

    model: str
    stable: str
    """The path that holds the traffic outside rollouts; changes at promotion."""
    split: SplitStatus
    paths: list[PathStatus]
    routers: list[RouterStatus]
    rollout: RolloutStatus | None
    evidence: EvidenceStatus | None
    """None where the rollout rests on none, or has ended badly."""
    at: float
    journal: str
    controller_pid: int


class HistoryEntry(TypedDict):
    """One line of the journal."""

    id: int
    at: float
    rollout: str
    attempt: int
    event: str
    state: str
    """After the event."""
    weight: float
    summary: str


class ExportedEvent(HistoryEntry):
    """One line of an exported journal."""

    body: dict[str, Any]
    """The event's own fields, from which `fleet canary simulate` makes it again."""


Band = tuple[float, float]
"""Median and 95th percentile, in seconds."""


class PathPoint(TypedDict):
    """What one path did between two points; everything it served, compared or not."""

    itl: Band | None
    """None where nothing was streamed."""
    ttft: Band | None
    requests: int
    """Ended; shed ones do not count."""
    failed: int
    tokens_per_second: float
    rounds: int
    """Those that verified at least one drafted token."""
    drafted: int
    accepted: int
    accepted_at: list[int]
    """How often the drafted token at each position, from the first, was accepted."""


class TrendPoint(TypedDict):
    """The fleet over a few seconds."""

    at: float
    """Its end, in seconds since the Unix epoch."""
    seconds: float
    weight_set: float | None
    """Percent of eligible requests for the canary; None without a rollout."""
    weight_realised: float | None
    paths: dict[str, PathPoint]


class Overview(TypedDict):
    """What the dashboard shows."""

    status: FleetStatus
    events: list[HistoryEntry]
    """Of all rollouts, oldest first."""
    points: list[TrendPoint]
    """Oldest first."""
    every_seconds: float
    """Between two points, at least."""
    kept: int
    """How many points the controller remembers."""


class RolloutSummary(TypedDict):
    """One line of `list`."""

    id: str
    canary: str
    state: str
    attempt: int
    weight: float
    reason: str
    """Its last turn, as `history` tells it."""
    started_at: float
    ended_at: float | None


class StepNeed(TypedDict):
    """What one step asks of the traffic, at the least."""

    step: int
    """1-based."""
    weight: float
    canary_requests: int
    requests: int
    """Of both paths, eligible ones, so that the canary gets its part on average."""
    seconds: float
    """The bake, or longer where that many windows take longer."""
    expected_seconds: float | None
    """At the present rate of requests; None where that is not known or 0."""


class Outlook(TypedDict):
    """How long a plan takes, as far as that can be known before it starts."""

    steps: list[StepNeed]
    requests_per_second: float | None
    """At present, over all paths; None where no fleet was asked."""


class CommandAnswer(TypedDict):
    """The answer to `command(name, arguments)`; which keys are there depends on the command.

    arguments: start {plan, dry_run=False}; pause, resume, retry {}; promote {full=False}; abort {reason="", by=""};
    set-weight {weight}; history {rollout=latest, limit=200, windows=False};
    export {rollout=latest, after=0, limit=200}; explain {guardrail}; lint {plan}; list {};
    overview {span="30m" or "12h", after=0.0, after_event=0};
    calibrated {plan, rollout=latest, tried, chosen_seconds, untried=()}.
    """

    message: NotRequired[str]
    """start, pause, resume, promote, abort, retry, set-weight, calibrated: one line to print."""
    rollout: NotRequired[RolloutStatus]
    """The same commands: the rollout afterwards (not with dry_run)."""
    events: NotRequired[list[HistoryEntry]]
    """history, oldest first."""
    record: NotRequired[list[ExportedEvent]]
    """export: the events numbered above `after`, oldest first; empty at the end."""
    rollouts: NotRequired[list[RolloutSummary]]
    """list, oldest first."""
    explanation: NotRequired[Explanation]
    """explain."""
    overview: NotRequired[Overview]
    """overview: with the points later than `after` and the newest events numbered above `after_event`."""
    errors: NotRequired[list[str]]
    """lint: empty means the plan can be started."""
    warnings: NotRequired[list[str]]
    """lint, start."""
    outlook: NotRequired[Outlook]
    """lint, start: absent where the plan cannot be started."""
