"""What the dashboard shows: rows of panels, each with its PromQL."""

from __future__ import annotations

from dataclasses import dataclass

OF_PATH = 'model_name=~"$model",path=~"$path"'
"""What the dashboard's variables leave of a metric that has a path."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and what its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a row."""

    title: str
    unit: str
    """Grafana's name of it: s, percent (of 100), percentunit (of 1), short, ops …"""
    queries: tuple[Query, ...]
    description: str = ""
    kind: str = "timeseries"
    """Or "stat", the present value of each series, or "state-timeline"."""

    @property
    def is_instant(self) -> bool:
        return self.kind == "stat"


def _rate(metric: str, by: str = "path", more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{OF_PATH}{more}}}[$__rate_interval]))"


def _sum(metric: str, by: str = "path", more: str = "") -> str:
    return f"sum by ({by}) ({metric}{{{OF_PATH}{more}}})"


def _max(metric: str) -> str:
    return f"max by (path) ({metric}{{{OF_PATH}}})"


def _quantiles(metric: str, *quantiles: float) -> tuple[Query, ...]:
    buckets = _rate(f"{metric}_bucket", by="le, path")
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"{{{{path}}}} p{q * 100:g}") for q in quantiles)


def _share(part: str, whole: str) -> tuple[Query, ...]:
    return (Query(f"{_rate(part)} / {_rate(whole)}", "{{path}}"),)


_ROUNDS = "vllm:spec_decode_num_drafts_total"
_FAILED = ',outcome=~"failed|truncated|timed_out"'

ROLLOUT = (
    Panel("State", "short", (Query("max by (state) (fleet_rollout_state)", "{{state}}"),), kind="state-timeline"),
    Panel(
        "Canary weight",
        "percent",
        (
            Query("max(fleet_rollout_weight_set_percent)", "set"),
            Query("max(fleet_rollout_weight_realised_percent)", "realised"),
        ),
        "Of the eligible requests. Realised may differ by chance while there are few of them.",
    ),
    Panel(
        "Guardrail verdicts",
        "short",
        (Query("max by (guardrail) (fleet_guardrail_level)", "{{guardrail}}"),),
        "0 pass, 1 insufficient, 2 no data, 3 fail. The worst one decides.",
        kind="state-timeline",
    ),
    Panel(
        "Evidence against the canary",
        "percentunit",
        (Query("max by (guardrail) (fleet_guardrail_e_value / fleet_guardrail_threshold)", "{{guardrail}}"),),
        "Each guardrail's e-value as a share of its threshold. At 100 % it trips; evidence that falls is forgiven.",
    ),
    Panel(
        "Rollbacks",
        "short",
        (Query("sum by (guardrail) (increase(fleet_guardrail_trips_total[$__range]))", "{{guardrail}}"),),
        "In the time shown, by the guardrail that caused them.",
        kind="stat",
    ),
    Panel(
        "Routers",
        "short",
        (
            Query("max(fleet_routers)", "reporting"),
            Query("max(fleet_routers_current)", "on the present split"),
        ),
        "A router that cannot reach the controller keeps its last split.",
    ),
    Panel(
        "Stale evidence",
        "short",
        (Query("max by (reason) (fleet_evidence_stale)", "{{reason}}"),),
        "1 where the load matrix that the rollout rests on no longer speaks of what is served.",
        kind="state-timeline",
    ),
)
LATENCY = (
    Panel(
        "ITL p50, p95",
        "s",
        _quantiles("vllm:inter_token_latency_seconds", 0.5, 0.95),
        "Time per token over the last 8 tokens: what a reader feels, comparable between paths.",
    ),
    Panel("TPOT p50, p95", "s", _quantiles("vllm:request_time_per_output_token_seconds", 0.5, 0.95)),
    Panel("TTFT p50, p95", "s", _quantiles("vllm:time_to_first_token_seconds", 0.5, 0.95)),
    Panel(
        "Gap between chunks p95, p99",
        "s",
        _quantiles("fleet_gap_seconds", 0.95, 0.99),
        "Smoothness. Larger on a speculating path, whose steps take longer and bring more; not for comparing paths.",
    ),
    Panel("Request p50, p95", "s", _quantiles("vllm:e2e_request_latency_seconds", 0.5, 0.95)),
    Panel("Waiting for a slot p95", "s", _quantiles("vllm:request_queue_time_seconds", 0.95)),
)
THROUGHPUT = (
    Panel("Output tokens/s", "short", (Query(_rate("vllm:generation_tokens_total"), "{{path}}"),)),
    Panel(
        "Requests/s by outcome",
        "reqps",
        (Query(_rate("fleet_requests_total", "path, outcome"), "{{path}} {{outcome}}"),),
    ),
    Panel(
        "Error ratio",
        "percentunit",
        (
            Query(
                f"{_rate('fleet_requests_total', more=_FAILED)} / {_rate('fleet_requests_total')}",
                "{{path}}",
            ),
        ),
        "Failed, truncated or timed out, by the path that the request was assigned to.",
    ),
    Panel("Streams in flight", "short", (Query(_sum("fleet_streams_in_flight"), "{{path}}"),)),
    Panel(
        "Fallbacks/s",
        "reqps",
        (Query(_rate("fleet_fallbacks_total"), "{{path}}"),),
        "Requests whose path failed and that went on elsewhere; their clients saw one unbroken stream.",
    ),
    Panel("Stalled streams/s", "short", (Query(_rate("fleet_stalls_total"), "{{path}}"),)),
)
ACCEPTANCE = (
    Panel(
        "Acceptance",
        "percentunit",
        _share("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        "Accepted / drafted tokens.",
    ),
    Panel(
        "Mean accepted length",
        "short",
        (Query(f"1 + {_rate('vllm:spec_decode_num_accepted_tokens_total')} / {_rate(_ROUNDS)}", "{{path}}"),),
        "Tokens per round with a draft, the target's own one included.",
    ),
    Panel(
        "Acceptance by position",
        "percentunit",
        (
            Query(
                f"{_rate('vllm:spec_decode_num_accepted_tokens_per_pos_total', 'path, position')}"
                f" / on (path) group_left () {_rate(_ROUNDS)}",
                "{{path}} position {{position}}",
            ),
        ),
        "Share of rounds in which the token at this position was accepted.",
    ),
    Panel(
        "Acceptance by request p10, p50",
        "percentunit",
        _quantiles("fleet_request_acceptance_ratio", 0.1, 0.5),
        "Very low ones are garbled or unusual texts, very high ones repeat themselves.",
    ),
    Panel(
        "Rounds/s",
        "ops",
        (
            Query(_rate(_ROUNDS), "{{path}} drafted"),
            Query(_rate("fleet_rounds_rejected_total"), "{{path}} rejected"),
            Query(_rate("fleet_rounds_empty_total"), "{{path}} without a draft"),
            Query(_rate("fleet_rounds_late_total"), "{{path}} late"),
        ),
    ),
    Panel(
        "Time of a round",
        "s",
        (
            Query(_max("fleet_draft_seconds"), "{{path}} draft"),
            Query(_max("fleet_verify_seconds"), "{{path}} target step"),
            Query(_max("fleet_accept_seconds"), "{{path}} of it accepting"),
            Query(_max("fleet_wire_seconds"), "{{path}} wire"),
        ),
    ),
)
REPLICAS = (
    Panel(
        "Replicas",
        "short",
        (
            Query(_sum("fleet_replicas_ready"), "{{path}} ready"),
            Query(_sum("fleet_replicas_wanted"), "{{path}} wanted"),
        ),
    ),
    Panel(
        "Drafts by health",
        "short",
        (Query(_sum("fleet_draft_workers", "path, health", ',health!="none"'), "{{path}} {{health}}"),),
        "A degraded or lost draft costs speed, never text: its target decodes alone.",
    ),
    Panel("KV cache in use", "percentunit", (Query(_max("vllm:kv_cache_usage_perc"), "{{path}}"),)),
    Panel(
        "Sequences",
        "short",
        (
            Query(_sum("vllm:num_requests_running"), "{{path}} running"),
            Query(_sum("vllm:num_requests_waiting"), "{{path}} waiting"),
        ),
    ),
    Panel("Waiting in the routers", "short", (Query("max(fleet_requests_queued)", "queued"),)),
    Panel("Preemptions/s", "ops", (Query(_rate("vllm:num_preemptions_total"), "{{path}}"),)),
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Rollout", ROLLOUT),
    ("Latency by path", LATENCY),
    ("Throughput and outcomes", THROUGHPUT),
    ("Speculation", ACCEPTANCE),
    ("Replicas", REPLICAS),
)
