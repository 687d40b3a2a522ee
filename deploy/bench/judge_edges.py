"""Where is the judge most easily wrong? Canaries exactly as bad as they may be, and limits without any slack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from canary.plan import Plan
from deploy.bench.judge_runs import LIMITS, STEPS, Setting, plan_with
from deploy.bench.judge_traffic import Harm, Shocks
from fleet.histogram import RELATIVE_ACCURACY

SLOWER = ((1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY)) ** 5
"""Five whole buckets of a histogram, so that rounding the limit up to one gives no slack: 10.5 %."""
_P99_SECONDS = 0.0926
"""Of stable's gaps."""
_PERCENT = f"{100.0 * (SLOWER - 1.0):.12f}%"


@dataclass(frozen=True, slots=True)
class Edge:
    """A canary that keeps every limit, and some of them only just."""

    name: str
    limits: dict[str, Any]
    harm: Harm = field(default_factory=Harm)
    requests_per_second: float = 10.0
    watched: int = 0
    """Windows after promotion, at 95 %; with any, everything moves at once and there are no other ones."""

    @property
    def setting(self) -> Setting:
        return Setting(self.requests_per_second, Shocks(host=0.05), self.harm, is_peak=True)

    @property
    def plan(self) -> Plan:
        return plan_with(self.limits, STEPS[-1:], holdback=5) if self.watched else plan_with(self.limits, STEPS)


NO_SLACK: dict[str, Any] = (
    {name: {"max_increase": "0%"} for name in ("itl_p95", "ttft_p95", "tpot_p95")}
    | {
        "queue_delay": {"max_increase": "0ms"},
        "gap_p99": {"max": f"{1000.0 * _P99_SECONDS:.1f}ms"},
        "peak_throughput": {"max_decrease": "0%"},
        "acceptance": {"max_decrease": "0%", "reference": 0.7},
    }
    | {
        name: {"max_increase": "0pp"}
        for name in ("stall", "error_rate", "cancel_rate", "completion_lag", "kv_pressure")
    }
)

AT_LIMIT: dict[str, Any] = (
    LIMITS
    | {name: {"max_increase": _PERCENT} for name in ("itl_p95", "ttft_p95", "tpot_p95")}
    | {"gap_p99": {"max": f"{1000.0 * SLOWER * _P99_SECONDS:.1f}ms"}}
)

BARELY = Harm(slowdown=SLOWER, error_rate=0.010, acceptance=0.63, throughput=0.95)
"""Exactly as bad as AT_LIMIT allows in all of these."""
LEARNED: dict[str, Any] = {"acceptance": {"max_decrease": "10%", "reference": "calibrate"}}
_WATCHED = 120

EDGES = (
    Edge("equal; every limit 0", NO_SLACK, requests_per_second=2.0),
    Edge("equal; every limit 0", NO_SLACK),
    Edge("as bad as the limits allow", AT_LIMIT, BARELY, requests_per_second=2.0),
    Edge("as bad as the limits allow", AT_LIMIT, BARELY),
    Edge("equal; p95 ITL alone, limit 0", {"itl_p95": {"max_increase": "0%"}}),
    Edge("errors as many as allowed; alone", {"error_rate": {"max_increase": "0.5pp"}}, Harm(error_rate=0.010)),
    Edge(
        "acceptance as low as allowed, from what was learned; alone",
        LEARNED,
        Harm(acceptance=0.63, acceptance_after=1000),
    ),
    Edge("equal; the usual limits", LIMITS, watched=_WATCHED),
    Edge("as bad as the limits allow", AT_LIMIT, BARELY, watched=_WATCHED),
)
