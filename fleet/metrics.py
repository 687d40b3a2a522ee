"""Every metric: its name, help, labels and buckets, and how a snapshot of the fleet becomes one scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fleet.generation import FinishReason
from fleet.histogram import RELATIVE_ACCURACY, LogHistogram, value_of
from fleet.traffic import DRAFT_LINK_EVENTS, Outcome, PathTally, ReplicaReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENGINE = "0"
DRAFT_HEALTH = ("none", "healthy", "degraded", "lost")
GUARDRAILS = (
    "oom",
    "crash_loop",
    "signal",
    "itl_p95",
    "ttft_p95",
    "tpot_p95",
    "queue_delay",
    "gap_p99",
    "stall",
    "error_rate",
    "cancel_rate",
    "completion_lag",
    "kv_pressure",
    "peak_throughput",
    "acceptance",
)
"""Those that can take a canary back."""
ROLLOUT_STATES = ("preparing", "baking", "paused", "holding", "promoted", "rolled_back", "aborted")

_MS = tuple(step / 1000 for step in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 75))
_TOKEN_BUCKETS = (*_MS, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST_TOKEN_BUCKETS = (*_MS, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_LONG_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_REQUEST_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, *_LONG_BUCKETS)
_RATIO_BUCKETS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; `name` is without the `_total` that a counter gets in the scrape."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    help: str
    labels: tuple[str, ...] = ()
    """Beside model_name, engine and path where `is_of_path`."""
    buckets: tuple[float, ...] = ()
    is_of_path: bool = True
    shift: float = 0.0
    """What was added to every value before it went into the histogram."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (("model_name", "engine", "path") if self.is_of_path else ()) + self.labels

    @property
    def scraped_names(self) -> tuple[str, ...]:
        """The names that a query can use."""
        match self.kind:
            case "counter":
                return (f"{self.name}_total",)
            case "histogram":
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
            case _:
                return (self.name,)


def _counter(name: str, text: str, *labels: str, of_path: bool = True) -> Family:
    return Family(name, "counter", text, labels, is_of_path=of_path)


def _gauge(name: str, text: str, *labels: str, of_path: bool = True) -> Family:
    return Family(name, "gauge", text, labels, is_of_path=of_path)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        _counter("vllm:prompt_tokens", "Prompt tokens of all requests."),
        _counter("vllm:generation_tokens", "Tokens streamed to clients."),
        _counter("vllm:request_success", "Choices that ended, by finish reason.", "finished_reason"),
        _counter("vllm:num_preemptions", "Sequences preempted for want of KV cache."),
        _counter("vllm:spec_decode_num_drafts", "Rounds that verified at least one drafted token."),
        _counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified."),
        _counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."),
        _counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position in the draft.", "position"
        ),
        _gauge("vllm:num_requests_running", "Sequences in the running batch."),
        _gauge("vllm:num_requests_waiting", "Sequences that wait in the engines."),
        _gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is full."),
        Family(
            "vllm:time_to_first_token_seconds",
            "histogram",
            "Request accepted by the router to its first token.",
            buckets=_FIRST_TOKEN_BUCKETS,
        ),
        Family(
            "vllm:inter_token_latency_seconds",
            "histogram",
            "Time per token over the last 8 tokens, one value per token: what a reader feels.",
            buckets=_TOKEN_BUCKETS,
        ),
        Family(
            "vllm:request_time_per_output_token_seconds",
            "histogram",
            "Mean time per output token after the first chunk, one value per request.",
            buckets=_TOKEN_BUCKETS,
        ),
        Family(
            "vllm:e2e_request_latency_seconds",
            "histogram",
            "Request accepted by the router to its last token.",
            buckets=_REQUEST_BUCKETS,
        ),
        Family(
            "vllm:request_queue_time_seconds", "histogram", "Time spent waiting for a slot.", buckets=_REQUEST_BUCKETS
        ),
        Family("fleet_gap_seconds", "histogram", "Raw time between chunks: smoothness.", buckets=_TOKEN_BUCKETS),
        Family(
            "fleet_stall_ratio",
            "histogram",
            "Share of time in which a reader of 20 ms per token waits, one value per stream.",
            buckets=_RATIO_BUCKETS,
            shift=1.0,
        ),
        Family(
            "fleet_request_acceptance_ratio",
            "histogram",
            "accepted/drafted, one value per request with a draft.",
            buckets=_RATIO_BUCKETS,
            shift=1.0,
        ),
        _counter("fleet_requests", "Requests that ended, by outcome, on the path they were assigned to.", "outcome"),
        _counter("fleet_requests_assigned", "Requests that were assigned to the path."),
        _counter("fleet_fallbacks", "Requests whose path failed and that went on elsewhere."),
        _counter("fleet_rounds_empty", "Rounds of a speculating path without a drafted token."),
        _counter("fleet_rounds_late", "Rounds whose proposal came too late."),
        _counter("fleet_rounds_rejected", "Rounds in which no drafted token was accepted."),
        _counter("fleet_draft_link", "What happened between targets and their draft workers, by event.", "event"),
        _counter("fleet_stalls", "Open gaps of streams in flight that exceeded the stall limit."),
        _gauge("fleet_streams_in_flight", "Streams open on the path."),
        _gauge("fleet_replicas_ready", "Replicas that report themselves."),
        _gauge("fleet_replicas_wanted", "Replicas that the config asks for."),
        _gauge("fleet_draft_workers", "Replicas by the health of their draft.", "health"),
        _gauge("fleet_draft_seconds", "Mean time of the draft per round, over the replicas that had any."),
        _gauge("fleet_verify_seconds", "Mean time of a target step without prefill, over the replicas that had any."),
        _gauge("fleet_accept_seconds", "Mean time of sampling and accepting in such a step; 0 on a GPU: not known."),
        _gauge("fleet_wire_seconds", "Mean time on the verify stream per round, over the replicas that had any."),
        _gauge("fleet_gpu_memory_bytes", "Most that the path's targets have had allocated on GPUs; 0 without one."),
        _gauge(
            "fleet_snapshot_time_seconds",
            "When the controller took this snapshot, since the Unix epoch; it stands still while that is away.",
            of_path=False,
        ),
        _gauge("fleet_split_version", "Version of the present split.", of_path=False),
        _gauge("fleet_routers", "Routers that report themselves.", of_path=False),
        _gauge("fleet_routers_current", "Routers that route by the present split.", of_path=False),
        _gauge("fleet_requests_queued", "Requests that wait in the routers for a slot.", of_path=False),
        _gauge("fleet_rollout_weight_set_percent", "Canary's share as set.", of_path=False),
        _gauge("fleet_rollout_weight_realised_percent", "Canary's share as it turned out.", of_path=False),
        _gauge("fleet_rollout_state", "1 for the state of the latest rollout, else 0.", "state", of_path=False),
        _gauge("fleet_guardrail_level", "0 pass, 1 insufficient, 2 no data, 3 fail.", "guardrail", of_path=False),
        _gauge("fleet_guardrail_e_value", "Evidence that the limit is exceeded.", "guardrail", of_path=False),
        _gauge("fleet_guardrail_threshold", "Evidence at which the guardrail trips.", "guardrail", of_path=False),
        _counter("fleet_guardrail_trips", "Rollbacks by the guardrail that caused them.", "guardrail", of_path=False),
        _gauge("fleet_evidence_stale", "1 where the evidence no longer holds, by reason.", "reason", of_path=False),
        _counter("fleet_journal_failures", "Commits that the disk refused since the start.", of_path=False),
        _counter("fleet_webhook_failures", "Tries that a webhook did not take.", "webhook", of_path=False),
    )
}


@dataclass(frozen=True, slots=True)
class PathSnapshot:
    """One path: counters since ever, gauges of now."""

    path: str
    totals: PathTally
    replicas: Sequence[ReplicaReport]
    replicas_wanted: int
    preemptions: int
    in_flight: int
    draft_link: Mapping[str, int] = field(default_factory=dict)
    """Event -> how often."""


@dataclass(frozen=True, slots=True)
class GuardrailSnapshot:
    """What a guardrail says now."""

    guardrail: str
    level: int
    e_value: float | None
    threshold: float | None


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """The latest rollout."""

    state: str
    weight_set: float
    weight_realised: float | None
    guardrails: Sequence[GuardrailSnapshot]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one scrape shows."""

    model_name: str
    paths: Sequence[PathSnapshot]
    rollout: RolloutSnapshot | None = None
    evidence_stale: Mapping[str, bool] = field(default_factory=dict)
    """Reason -> whether it speaks against the evidence of the rollout that serves."""
    trips: Mapping[str, int] = field(default_factory=dict)
    """Guardrail -> rollbacks since ever."""
    split_version: int = 0
    routers: int = 0
    routers_current: int = 0
    queued: int = 0
    journal_failures: int = 0
    webhook_failures: Mapping[str, int] = field(default_factory=dict)
    """Of every webhook in the config, since ever."""
    taken_at: float = 0.0
    """Seconds since the Unix epoch."""


def render(snapshot: Snapshot) -> bytes:
    """The snapshot in Prometheus' text format; see CONTENT_TYPE."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneScrape(snapshot))
    return generate_latest(registry)


class _OneScrape(Collector):
    """Hands the snapshot to prometheus_client, family by family."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        samples: dict[str, list[_Sample]] = {name: [] for name in FAMILIES}
        for path in self._snapshot.paths:
            fixed = (self._snapshot.model_name, ENGINE, path.path)
            for name, labels, value in _of_path(path):
                samples[name].append((fixed + labels, value))
        for name, labels, value in _of_fleet(self._snapshot):
            samples[name].append((labels, value))
        for name, family in FAMILIES.items():
            yield _metric(family, samples[name])


_Sample = tuple[tuple[str, ...], "float | LogHistogram"]
_NamedSample = tuple[str, tuple[str, ...], "float | LogHistogram"]


def _metric(family: Family, samples: Iterable[_Sample]) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    for values, value in samples:
        labels = dict(zip(family.all_labels, values, strict=True))
        if isinstance(value, LogHistogram):
            _add_histogram(metric, family, labels, value)
        else:
            metric.add_sample(family.scraped_names[0], labels, value)
    return metric


def _add_histogram(metric: Metric, family: Family, labels: dict[str, str], value: LogHistogram) -> None:
    bucket, total, count = family.scraped_names
    cumulative = _cumulative(value, [edge + family.shift for edge in family.buckets])
    for edge, seen in zip(family.buckets, cumulative, strict=True):
        metric.add_sample(bucket, {**labels, "le": str(float(edge))}, seen)
    metric.add_sample(bucket, {**labels, "le": "+Inf"}, value.total)
    metric.add_sample(total, labels, value.sum - family.shift * value.total)
    metric.add_sample(count, labels, value.total)


def _cumulative(histogram: LogHistogram, edges: Sequence[float]) -> Iterator[int]:
    """How many values lie at or below each edge, to within the histogram's 1 %; the sum stays exact."""
    ordered = sorted(histogram.counts)
    seen, following = 0, 0
    for edge in edges:
        while following < len(ordered) and value_of(ordered[following]) <= edge * (1.0 + RELATIVE_ACCURACY):
            seen += histogram.counts[ordered[following]]
            following += 1
        yield seen


def _of_path(path: PathSnapshot) -> Iterator[_NamedSample]:
    tally = path.totals
    plain: dict[str, float | LogHistogram] = {
        "vllm:prompt_tokens": tally.prompt_tokens,
        "vllm:generation_tokens": tally.output_tokens,
        "vllm:num_preemptions": path.preemptions,
        "vllm:spec_decode_num_drafts": tally.rounds,
        "vllm:spec_decode_num_draft_tokens": tally.drafted,
        "vllm:spec_decode_num_accepted_tokens": tally.accepted,
        "vllm:time_to_first_token_seconds": tally.ttft,
        "vllm:inter_token_latency_seconds": tally.itl,
        "vllm:request_time_per_output_token_seconds": tally.tpot,
        "vllm:e2e_request_latency_seconds": tally.e2e,
        "vllm:request_queue_time_seconds": tally.queue,
        "fleet_gap_seconds": tally.gap,
        "fleet_stall_ratio": tally.stall,
        "fleet_request_acceptance_ratio": tally.request_acceptance,
        "fleet_requests_assigned": tally.assigned,
        "fleet_fallbacks": tally.fallbacks,
        "fleet_rounds_empty": tally.empty_rounds,
        "fleet_rounds_late": tally.late_rounds,
        "fleet_rounds_rejected": tally.rejected_rounds,
        "fleet_stalls": tally.stalled,
        "fleet_streams_in_flight": path.in_flight,
        "fleet_replicas_wanted": path.replicas_wanted,
    }
    for name, value in (plain | _of_replicas(path.replicas)).items():
        yield name, (), value
    for reason in FinishReason:
        yield "vllm:request_success", (reason.value,), tally.finish_reasons.get(reason, 0)
    for outcome in Outcome:
        yield "fleet_requests", (outcome.value,), tally.outcomes.get(outcome, 0)
    for position, count in sorted(tally.accepted_at.items()):
        yield "vllm:spec_decode_num_accepted_tokens_per_pos", (str(position),), count
    for event in DRAFT_LINK_EVENTS if path.draft_link else ():
        yield "fleet_draft_link", (event,), path.draft_link.get(event, 0)
    for health in DRAFT_HEALTH:
        yield "fleet_draft_workers", (health,), sum(replica.draft == health for replica in path.replicas)


def _of_replicas(replicas: Sequence[ReplicaReport]) -> dict[str, float]:
    total = sum(replica.kv_total_tokens for replica in replicas)
    used = sum(replica.kv_used_tokens for replica in replicas)
    return {
        "vllm:num_requests_running": sum(replica.running for replica in replicas),
        "vllm:num_requests_waiting": sum(replica.waiting for replica in replicas),
        "vllm:kv_cache_usage_perc": used / total if total else 0.0,
        "fleet_replicas_ready": len(replicas),
        "fleet_draft_seconds": _mean_of_busy(replica.draft_seconds for replica in replicas),
        "fleet_verify_seconds": _mean_of_busy(replica.verify_seconds for replica in replicas),
        "fleet_accept_seconds": _mean_of_busy(replica.accept_seconds for replica in replicas),
        "fleet_wire_seconds": _mean_of_busy(replica.wire_seconds for replica in replicas),
        "fleet_gpu_memory_bytes": sum(replica.gpu_memory_bytes for replica in replicas),
    }


def _mean_of_busy(seconds: Iterable[float]) -> float:
    """A replica that had nothing to time says 0, which is not how long it takes."""
    timed = [value for value in seconds if value > 0]
    return sum(timed) / len(timed) if timed else 0.0


def _of_fleet(snapshot: Snapshot) -> Iterator[_NamedSample]:
    yield "fleet_snapshot_time_seconds", (), snapshot.taken_at
    yield "fleet_split_version", (), snapshot.split_version
    yield "fleet_routers", (), snapshot.routers
    yield "fleet_routers_current", (), snapshot.routers_current
    yield "fleet_requests_queued", (), snapshot.queued
    yield "fleet_journal_failures", (), snapshot.journal_failures
    for guardrail in GUARDRAILS:
        yield "fleet_guardrail_trips", (guardrail,), snapshot.trips.get(guardrail, 0)
    for reason, is_stale in snapshot.evidence_stale.items():
        yield "fleet_evidence_stale", (reason,), float(is_stale)
    for webhook, failures in snapshot.webhook_failures.items():
        yield "fleet_webhook_failures", (webhook,), failures
    if snapshot.rollout is not None:
        yield from _of_rollout(snapshot.rollout)


def _of_rollout(rollout: RolloutSnapshot) -> Iterator[_NamedSample]:
    yield "fleet_rollout_weight_set_percent", (), rollout.weight_set
    if rollout.weight_realised is not None:
        yield "fleet_rollout_weight_realised_percent", (), rollout.weight_realised
    for state in ROLLOUT_STATES:
        yield "fleet_rollout_state", (state,), float(state == rollout.state)
    for item in rollout.guardrails:
        yield "fleet_guardrail_level", (item.guardrail,), item.level
        if item.e_value is not None and item.threshold is not None:
            yield "fleet_guardrail_e_value", (item.guardrail,), item.e_value
            yield "fleet_guardrail_threshold", (item.guardrail,), item.threshold
