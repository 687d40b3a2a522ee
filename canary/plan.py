"""What is a rollout asked to do? The plan file: its fields, their bounds, and what can already be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from canary.evidence import Fingerprint, MatrixEvidence, objections
from canary.limits import Duration, Guardrails, PlanSection
from fleet.config import PathName, explain
from fleet.errors import ConfigError
from fleet.traffic import Eligibility, SamplingMode


class Step(PlanSection):
    """So much traffic for at least so long."""

    weight: float = Field(gt=0, le=100, description="Percent of the eligible requests.")
    bake: Duration = Field(0.0, ge=0, description="Time at this weight; only the last step may go without.")


class OnNoData(PlanSection):
    """What to do when the canary has requests and nothing is heard of them."""

    hold: Duration = Field(120.0, gt=0)
    then: Literal["rollback", "hold"] = "rollback"


class Eligible(PlanSection):
    """Which requests take part; see `fleet.traffic.Eligibility`."""

    max_prompt_tokens: int | None = Field(None, ge=1)
    min_max_tokens: int | None = Field(None, ge=1)
    sampling: SamplingMode | None = None
    tenants: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict)

    def rule(self) -> Eligibility:
        headers = tuple(sorted((name.lower(), value) for name, value in self.headers.items()))
        return Eligibility(self.max_prompt_tokens, self.min_max_tokens, self.sampling, self.tenants, headers)


class Plan(PlanSection):
    """A rollout from the first request to promotion."""

    stable: PathName
    canary: PathName
    eligible: Eligible = Eligible()
    evidence: MatrixEvidence | str | None = Field(
        None, description="Folder of a load matrix; `fleet canary start` sends what a rollout needs of it."
    )
    speculate: Literal["always", "where_it_wins"] = Field(
        "always", description="where_it_wins: only the cells that the evidence keeps are eligible, for good."
    )
    steps: tuple[Step, ...] = Field(min_length=1, max_length=50)
    holdback: float = Field(0.0, ge=0, le=50, description="Percent that stays on stable after promotion.")
    window: Duration = Field(30.0, ge=1, le=3600)
    alpha: float = Field(
        0.05, gt=0, le=0.2, description="Chance that a canary that keeps its limits is ever taken back."
    )
    guardrails: Guardrails = Guardrails()
    on_no_data: OnNoData = OnNoData()
    min_requests: int = Field(50, ge=1, description="Canary requests that each step must have seen end.")
    min_windows: int = Field(5, ge=1, description="Full windows that each step must have judged.")
    warmup_windows: int = Field(1, ge=0, le=100, description="Windows after a change of weight that latency ignores.")
    mode: Literal["automatic", "manual"] = Field(
        "automatic", description="manual: guardrails that compare only hold, steps wait for an operator's promote."
    )
    last_step: Literal["non_inferior", "no_harm"] = Field(
        "non_inferior", description="What the step before 100 % must have shown of itl_p95."
    )

    @model_validator(mode="after")
    def _can_be_carried_out(self) -> Plan:
        weights = [step.weight for step in self.steps]
        if self.is_partial and self.evidence is None:
            raise ValueError("speculate: where_it_wins needs evidence, the folder of a load matrix")
        if self.is_partial and self.holdback > 0:
            raise ValueError("speculate: where_it_wins takes no holdback: what does not win stays on stable anyway")
        if self.stable == self.canary:
            raise ValueError("stable and canary must be different paths")
        if any(after <= before for before, after in pairwise(weights)):
            raise ValueError(f"the weights of the steps must increase: {', '.join(f'{w:g}' for w in weights)}")
        if weights[-1] != 100:
            raise ValueError("the last step must have weight 100")
        for number, step in enumerate(self.steps[:-1], start=1):
            if step.bake < self.window:
                raise ValueError(f"step {number} must bake at least one window ({self.window:g}s), not {step.bake:g}s")
        if 0 < self.steps[-1].bake < self.window:
            raise ValueError(f"the last step must bake one window ({self.window:g}s) or not at all")
        if len(weights) > 1 and weights[-2] > 100 - self.holdback:
            raise ValueError(f"holdback {self.holdback:g} leaves no room for a step at weight {weights[-2]:g}")
        if self.on_no_data.hold < self.window:
            raise ValueError(f"on_no_data.hold must be at least one window ({self.window:g}s)")
        return self

    @property
    def is_partial(self) -> bool:
        """Whether promotion moves only the requests for which the canary wins; the rest stays on stable for good."""
        return self.speculate == "where_it_wins"

    @property
    def matrix(self) -> MatrixEvidence | None:
        """The evidence, where it is more than the name of a folder."""
        return self.evidence if isinstance(self.evidence, MatrixEvidence) else None

    def eligibility(self) -> Eligibility:
        """Which requests take part."""
        if not self.is_partial:
            return self.eligible.rule()
        cells = tuple(cell.winning() for cell in self.matrix.cells) if self.matrix else ()
        return replace(self.eligible.rule(), cells=cells)

    @property
    def alpha_each(self) -> float:
        """Bonferroni's share of alpha for one statistical guardrail."""
        return self.alpha / max(1, len(self.guardrails.statistical))

    @property
    def comparing_steps(self) -> tuple[Step, ...]:
        """Steps in which there is a baseline to compare with."""
        return tuple(step for step in self.steps if step.bake > 0 and (step.weight < 100 or self.holdback > 0))

    @property
    def capital_each(self) -> float:
        """Of the part of a guardrail's betting capital that is for the steps, what each comparing one stakes anew."""
        return 1.0 / max(1, len(self.comparing_steps))

    @property
    def watch_share(self) -> float:
        """Part of a guardrail's betting capital for the time after promotion: as much as for a comparing step."""
        is_watched = self.holdback > 0 or self.is_partial
        return 1.0 / (len(self.comparing_steps) + 1) if is_watched else 0.0


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What the fleet's config says of a path."""

    replicas: int
    """How many are wanted."""
    is_speculative: bool
    gpus: float = 0.0
    """Of one replica, its draft worker's included; where there are none throughput is counted per replica."""


def read_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan in a mapping as YAML or JSON gives it; ConfigError names every wrong field in one line."""
    try:
        return Plan.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def misfits(plan: Plan, paths: Mapping[str, PathFacts], stable: str) -> list[str]:
    """Why this fleet cannot carry out the plan, one line each; empty when it can."""
    found = [
        f"{role}: no path '{name}'; there are: {', '.join(sorted(paths))}"
        for role, name in (("stable", plan.stable), ("canary", plan.canary))
        if name not in paths
    ]
    if plan.stable in paths and plan.stable != stable:
        swap = (
            " (a promotion moves it); swap 'stable' and 'canary' to go the other way" if plan.canary == stable else ""
        )
        found.append(f"stable: the fleet's stable path is '{stable}', not '{plan.stable}'{swap}")
    canary = paths.get(plan.canary)
    if canary and not canary.is_speculative and plan.guardrails.acceptance:
        found.append(f"guardrails.acceptance: '{plan.canary}' does not speculate, so it has no acceptance")
    return found


def doubts(plan: Plan, live: Mapping[str, Fingerprint]) -> list[str]:
    """Why the plan's evidence does not carry it on the fleet that runs, one line each; a plan without has none."""
    if plan.evidence is None:
        return []
    if plan.matrix is None:
        return [f"evidence: '{plan.evidence}' is a folder of yours; `fleet canary start -f` reads and sends it"]
    return list(objections(plan.matrix, live, (plan.stable, plan.canary), needs_cells=plan.is_partial))


def lone_hosts(plan: Plan, paths: Mapping[str, PathFacts]) -> list[str]:
    """The line for paths of one replica, whose host is part of everything that is measured of them."""
    lone = [f"'{name}'" for name in (plan.stable, plan.canary) if name in paths and paths[name].replicas < 2]
    if not lone or not plan.guardrails.statistical:
        return []
    return [f"paths: {' and '.join(lone)} with one replica: a slow host looks like a slow path; two tell them apart"]


def cautions(plan: Plan, *, speculates: bool = True) -> list[str]:
    """What is allowed and seldom wise, one line each; `speculates` is of the canary."""
    found = []
    if plan.window < 10:
        found.append(f"window: {plan.window:g}s suits drills; below 10s windows depend on each other (30s is usual)")
    if plan.evidence is None and speculates:
        found.append("evidence: none is given, so nothing but the guardrails says whether speculation pays")
    if plan.matrix is not None and plan.matrix.decision != "keep":
        found.append(f"evidence: {plan.matrix.recommendation}")
    elif plan.matrix is not None and plan.matrix.losing:
        found.append(
            f"evidence: in cells that it keeps it loses for {'; '.join(plan.matrix.losing)}: restrict the plan "
            "(eligible: max_prompt_tokens), or measure such requests apart"
        )
    if not plan.guardrails.statistical:
        found.append("guardrails: only hard failures are watched; add itl_p95 and error_rate")
    if plan.guardrails.peak_throughput and plan.eligible != Eligible():
        found.append("peak_throughput: counts all requests of each path, and only the eligible ones reach the canary")
    if _learns_finely(plan):
        found.append("acceptance: below a limit of 5 % the reference takes some 2,000 requests of a kind to learn")
    if not plan.comparing_steps:
        watched = f"; only the watch over the holdback of {plan.holdback:g} % compares" if plan.holdback else ""
        found.append(f"steps: everything moves at once, so no step has a baseline to compare with{watched}")
    found += _doubts_of_proof(plan)
    for number, step in enumerate(plan.steps[:-1], start=1):
        needed = (plan.min_windows + plan.warmup_windows + 1) * plan.window
        if step.bake < needed:
            found.append(f"step {number}: {plan.min_windows} judged windows take {needed:g}s, not {step.bake:g}s")
    return found


def _learns_finely(plan: Plan) -> bool:
    """Whether a learned acceptance would have to be known better than its first requests can tell."""
    limit = plan.guardrails.acceptance
    return limit is not None and limit.reference == "calibrate" and limit.max_decrease < _FINE_DECREASE


_FINE_DECREASE = 0.05
"""What the most requests that are learned from can tell, at a deviation of 0.2 between them."""


def _doubts_of_proof(plan: Plan) -> list[str]:
    """Where the proof that is asked for before everything moves cannot be had, or hardly."""
    if plan.last_step == "no_harm" or not plan.comparing_steps:
        return []
    if plan.guardrails.itl_p95 is None:
        return ["last_step: non_inferior is a proof on itl_p95, which is not watched: nothing is proven; add it"]
    if len(plan.steps) == 1:
        return ["last_step: non_inferior needs a step before the last one: nothing is proven; add one"]
    if plan.steps[-2].weight < 50:
        return ["steps: below 50 % it takes hundreds of windows to show that the canary is no slower"]
    return []
