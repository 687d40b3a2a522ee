"""`make bench-judge`: what the judge's verdicts are worth, as tables for docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canary.calibration import rate_bounds
from deploy.bench.document import present
from deploy.bench.judge_edges import EDGES
from deploy.bench.judge_runs import (
    LIMITS,
    STEPS,
    WINDOW_SECONDS,
    Outcome,
    Setting,
    alone,
    false_alarms,
    outcomes,
    plan_with,
)
from deploy.bench.judge_traffic import Harm, Shocks
from deploy.bench.judge_winner import BASELINE_STEP, SPECULATIVE_STEP, compare, fate, streams

MARKS = "bench-judge"
SHOCKS = {"moments": Shocks(), "moments; hosts, for minutes": Shocks(host=0.05, persistence=0.8)}
POWER_RATE = 10.0


@dataclass(frozen=True, slots=True)
class Worse:
    """A canary that has to be found, and the guardrail that has to find it."""

    name: str
    guardrail: str
    limit: dict[str, str]
    harm: Harm
    is_peak: bool = False


HARMS = (
    Worse("p95 ITL +10 %", "itl_p95", {"max_increase": "0%"}, Harm(slowdown=1.10)),
    Worse("p95 ITL +25 %", "itl_p95", {"max_increase": "10%"}, Harm(slowdown=1.25)),
    Worse("p95 ITL +50 %", "itl_p95", {"max_increase": "10%"}, Harm(slowdown=1.50)),
    Worse("errors 0.5 → 1 %", "error_rate", {"max_increase": "0pp"}, Harm(error_rate=0.01)),
    Worse("errors 0.5 → 2 %", "error_rate", {"max_increase": "0.5pp"}, Harm(error_rate=0.02)),
    Worse("errors 0.5 → 5 %", "error_rate", {"max_increase": "0.5pp"}, Harm(error_rate=0.05)),
    Worse("acceptance −20 %", "acceptance", {"max_decrease": "10%"}, Harm(acceptance=0.56)),
    Worse(
        "acceptance −20 % after 5,000 requests",
        "acceptance",
        {"max_decrease": "10%"},
        Harm(acceptance=0.56, acceptance_after=5000),
    ),
    Worse("throughput −10 % at peak", "peak_throughput", {"max_decrease": "5%"}, Harm(throughput=0.90), is_peak=True),
)


def sound(runs: int, seed: int) -> Iterator[str]:
    """How often a canary that is no different is taken back."""
    yield "| requests/s | shocks | this judge | 95 % upper bound | p95 > 1.1 × for 60 s | Mann-Whitney each minute |"
    yield "|---|---|---|---|---|---|"
    plan = plan_with(LIMITS, STEPS)
    total = alarms = 0
    for rate in (2.0, 10.0, 50.0):
        for name, shocks in SHOCKS.items():
            found = false_alarms(Setting(rate, shocks, is_peak=True), plan, runs=runs, seed=seed)
            total, alarms = total + found.runs, alarms + found.ours
            ours, threshold, ranked = (f"{n / runs:.1%}" for n in (found.ours, found.threshold, found.rank_test))
            upper = f"{rate_bounds(found.ours, runs)[1]:.1%}"
            yield f"| {rate:g} | {name} | {ours} | {upper} | {threshold} | {ranked} |"
    yield f"| all | | {alarms / total:.1%} of {total} | {rate_bounds(alarms, total)[1]:.1%} | | |"


def edges(runs: int, seed: int) -> Iterator[str]:
    """How often a canary that only just keeps its limits is taken back, in the steps and when it is watched."""
    yield "| canary | judged | requests/s | taken back | 95 % upper bound | by |"
    yield "|---|---|---|---|---|---|"
    alarms = 0
    for edge in EDGES:
        found = outcomes(edge.setting, edge.plan, runs=runs, seed=seed, watched=edge.watched)
        trips = [item.trip.guardrail for item in found if item.trip is not None]
        minutes = edge.watched * WINDOW_SECONDS / 60.0
        when = f"{minutes:g} min after promotion" if edge.watched else "in the steps"
        rate, by = f"{edge.requests_per_second:g}", ", ".join(sorted(set(trips)))
        yield f"| {edge.name} | {when} | {rate} | {_of(len(trips), runs)} | {by} |"
        alarms += len(trips)
    yield f"| all | | | {_of(alarms, runs * len(EDGES))} | |"


def _of(hits: int, runs: int) -> str:
    return f"{hits} of {runs} | {rate_bounds(hits, runs)[1]:.1%}"


def powerful(runs: int, seed: int) -> Iterator[str]:
    """How soon the guardrail that is meant finds a worse canary."""
    yield "| harm | guardrail | limit | found | too early | median | 95th percentile |"
    yield "|---|---|---|---|---|---|---|"
    steps = [*STEPS[:2], {"weight": 50, "bake": "100m"}, STEPS[3]]
    for worse in HARMS:
        plan = alone(worse.guardrail, worse.limit, steps)
        setting = Setting(POWER_RATE, Shocks(host=0.05), worse.harm, worse.is_peak)
        found = outcomes(setting, plan, runs=runs, seed=seed)
        yield f"| {worse.name} | `{worse.guardrail}` | {', '.join(worse.limit.values())} | {_summary(found)} |"


def _summary(found: Sequence[Outcome]) -> str:
    """Found after the harm began; taken back before; median and 95th percentile of the minutes from its beginning on
    (a run in which it was not found counts as the longest)."""
    windows = [item.windows_to_find for item in found]
    ordered = sorted(float("inf") if count is None else count * WINDOW_SECONDS / 60.0 for count in windows)
    cells = [
        f"{sum(count is not None for count in windows)} of {len(found)}",
        str(sum(item.is_false for item in found)),
    ]
    for q in (0.5, 0.95):
        value = ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]
        cells.append("not in 2 h" if value == float("inf") else f"{value:.1f} min")
    return " | ".join(cells)


def winners(runs: int, seed: int) -> Iterator[str]:
    """Whether a faster canary with longer steps is kept, and a slower one is not."""
    yield "| acceptance | p95 gap | p95 ITL | median TPOT | promoted | rolled back | median time |"
    yield "|---|---|---|---|---|---|---|"
    source = np.random.default_rng([seed, 77])
    stable = streams(source, BASELINE_STEP, None)
    for acceptance in (0.75, 0.35):
        canary = streams(source, SPECULATIVE_STEP, acceptance)
        ratios = compare(stable, canary)
        fates = [fate(source, stable, canary) for _ in range(runs)]
        promoted, back = (sum(item.state == state for item in fates) for state in ("promoted", "rolled_back"))
        minutes = float(np.median([item.seconds for item in fates])) / 60
        figures = " | ".join(f"× {value:.2f}" for value in (ratios.gap_p95, ratios.itl_p95, ratios.tpot_p50))
        yield f"| {acceptance:.0%} | {figures} | {promoted} of {runs} | {back} of {runs} | {minutes:.0f} min |"


PARTS: dict[str, tuple[str, Callable[[int, int], Iterator[str]], int]] = {
    "sound": ("**No difference: rollouts taken back**", sound, 60),
    "edge": ("**No worse than allowed, and no slack: rollouts taken back**", edges, 40),
    "power": ("**Worse canaries: time to rollback**", powerful, 25),
    "winner": ("**A longer step that pays, and one that does not**", winners, 10),
}
"""Name -> title, rows, and how many rollouts each row takes by default."""


def main() -> None:
    """Simulate rollouts and print the tables, or write them between the marks of a document."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.judge", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, help="rollouts for each row, instead of the default of each part")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    arguments = parser.parse_args()
    present(lambda: _found(arguments), arguments.into, MARKS)


def _found(arguments: argparse.Namespace) -> Iterator[str]:
    """Every row is shown as soon as it is known."""
    for name in arguments.parts:
        title, rows, runs = PARTS[name]
        yield from (title, "")
        for row in rows(arguments.runs or runs, arguments.seed):
            sys.stderr.write(row + "\n")
            yield row
        yield ""


if __name__ == "__main__":
    main()
