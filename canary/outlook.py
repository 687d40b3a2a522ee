"""What does each step ask of the traffic, and how long does that take at the present rate?"""

from __future__ import annotations

import math

from canary.plan import Plan
from canary.rollout_state import step_weight
from canary.status import Outlook, StepNeed


def outlook(plan: Plan, requests_per_second: float | None) -> Outlook:
    """Every step's needs; with a rate, of all requests of the fleet, also how long they take."""
    return Outlook(
        steps=[_need(plan, index, requests_per_second) for index in range(len(plan.steps))],
        requests_per_second=requests_per_second,
    )


def _need(plan: Plan, index: int, rate: float | None) -> StepNeed:
    step, weight = plan.steps[index], step_weight(plan, index)
    canary = plan.min_requests if step.bake else 0
    # The window in which the weight changed counts for nothing, and warm-up windows are not judged.
    windows = 1 + plan.warmup_windows + plan.min_windows if step.bake else 0
    requests, seconds = math.ceil(100.0 * canary / weight), max(step.bake, windows * plan.window)
    expected = max(seconds, requests / rate) if rate else None
    return StepNeed(
        step=index + 1,
        weight=weight,
        canary_requests=canary,
        requests=requests,
        seconds=seconds,
        expected_seconds=expected if requests else seconds,
    )
