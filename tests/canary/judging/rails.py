"""One guardrail at a time, fed with windows of the test's making."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from canary.guardrails import Evidence, judge, observe
from canary.plan import read_plan
from canary.verdict import Level, Stage, Verdict
from canary.windows import ArmUsage, Window
from fleet.traffic import PathTally
from tests.canary.world import plan

STAGE = Stage(windows_needed=3, requests_needed=5, window_seconds=2.0, request_seconds=0.5)


def window(
    canary: PathTally | None = None,
    stable: PathTally | None = None,
    *,
    percent: float = 20.0,
    usage: tuple[ArmUsage, ArmUsage] = (ArmUsage(), ArmUsage()),
    routers: tuple[str, ...] = ("r1",),
) -> Window:
    """`usage` is (canary's, stable's)."""
    arms = (stable or PathTally(), canary or PathTally())
    return Window(2.0, percent, *arms, stable_usage=usage[1], canary_usage=usage[0], routers=routers)


def evidence_of(name: str, limit: dict[str, Any], windows: Iterable[Window]) -> Evidence:
    chosen = read_plan(plan(guardrails={name: limit}))
    evidence = Evidence.start(chosen)
    for item in windows:
        evidence = observe(evidence, chosen, item, is_promoted=False)
    return evidence


def verdict(name: str, limit: dict[str, Any], windows: Iterable[Window], stage: Stage = STAGE) -> Verdict:
    chosen = read_plan(plan(guardrails={name: limit}))
    evidence = evidence_of(name, limit, windows)
    return next(item for item in judge(evidence, chosen, stage) if item.guardrail == name)


def level(name: str, limit: dict[str, Any], windows: Iterable[Window]) -> Level:
    return verdict(name, limit, windows).level
