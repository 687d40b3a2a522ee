"""Can this plan find anything? How many of the worst possible windows it takes until a guardrail trips."""

from __future__ import annotations

from canary.guardrails import budget_of
from canary.judging.accusation import Accusation
from canary.plan import Plan
from canary.stats.betting import BETS, log_factors


def fewest_windows(plan: Plan) -> int:
    """Judged windows in which a guardrail that compares windows trips at the earliest: all of them as bad as can be."""
    accusation, budget = Accusation.start(len(BETS), plan.capital_each), budget_of(plan)
    while not accusation.proof(budget).is_reached:
        accusation = accusation.settle(log_factors(1.0), is_promoted=plan.watch_share == 1.0)
    return accusation.bets


def judged_windows(plan: Plan) -> int:
    """Of all steps that can be compared, less the windows that each leaves out."""
    steady = (round(step.bake / plan.window) - plan.warmup_windows - 1 for step in plan.comparing_steps)
    return sum(max(0, windows) for windows in steady)


def blind_spots(plan: Plan) -> list[str]:
    """What the plan asks for and is too short to find, one line each."""
    if not plan.guardrails.statistical or not plan.comparing_steps:
        return []
    needed, planned = fewest_windows(plan), judged_windows(plan)
    if planned >= needed:
        return []
    told = (
        f"even the worst canary takes {needed} judged windows to be found by comparison, and the bakes hold {planned}"
    )
    return [f"steps: {told}: bake longer, or watch fewer guardrails"]
