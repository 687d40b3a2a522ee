"""How would a rollout have gone on these windows? The judge alone, step by step, without a fleet around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from canary.guardrails import Evidence, budget_of, observe
from canary.judging.split import SplitRail
from canary.plan import Plan
from canary.windows import Window

WindowAt = Callable[[int, float], Window]
"""(number of the window in the rollout, the weight in percent) -> the window."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A pseudo-rollout that was taken back."""

    guardrail: str
    windows: int
    """Since it began, the last one included."""


def walk(plan: Plan, window_at: WindowAt, *, watched: int = 0) -> Trip | None:
    """Observe the windows of all bakes, and so many after promotion; the first guardrail whose evidence suffices.

    None at the end. The same evidence and thresholds as in a live rollout. Whether a step would have been
    passed is not asked, so that every rollout gets all its chances to be taken back.
    """
    evidence, number = Evidence.start(plan), 0
    for index, step in enumerate(plan.steps):
        evidence = (evidence.next_step(plan) if index else evidence).reweighted(plan)
        for _ in range(round(step.bake / plan.window)):
            window = window_at(number, min(step.weight, 100.0 - plan.holdback))
            evidence, number = observe(evidence, plan, window, is_promoted=False), number + 1
            if tripped := _tripped(evidence, plan):
                return Trip(tripped, number)
    evidence = evidence.next_step(plan).reweighted(plan)
    for _ in range(watched):
        window = window_at(number, 100.0 - plan.holdback)
        evidence, number = observe(evidence, plan, window, is_promoted=True), number + 1
        if tripped := _tripped(evidence, plan):
            return Trip(tripped, number)
    return None


def _tripped(evidence: Evidence, plan: Plan) -> str | None:
    """The first guardrail that would take the canary back."""
    budget = budget_of(plan)
    failing = (rail for rail in evidence.rails if not isinstance(rail, SplitRail) and rail.proof(budget).is_reached)
    return next((rail.guardrail for rail in failing), None)
