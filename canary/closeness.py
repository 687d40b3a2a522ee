"""How near did each guardrail come to tripping, and what did it say at the end?"""

from __future__ import annotations

from dataclasses import dataclass, field

from canary.guardrails import budget_of
from canary.rollout_state import Rollout, verdicts_of
from canary.verdict import Proof


@dataclass(frozen=True, slots=True)
class Closest:
    """The moment at which one guardrail's evidence was nearest to its threshold."""

    e_value: float
    threshold: float
    seconds: float
    """Since the start, on the rollout's clock."""

    @classmethod
    def of(cls, proof: Proof, seconds: float) -> Closest:
        return cls(proof.e_value, proof.threshold, seconds)


@dataclass(frozen=True, slots=True)
class Answer:
    """One guardrail in one course of a rollout."""

    guardrail: str
    level: str
    """At the end: pass, insufficient, no_data or fail."""
    closest: Closest | None
    """None where it needs no statistics, or saw no window."""


@dataclass(slots=True)
class Watch:
    """Looks on while a rollout is carried out."""

    _nearest: dict[str, tuple[float, Closest]] = field(default_factory=dict)
    """Distance to the threshold in nats, and the moment."""

    def look(self, rollout: Rollout, seconds: float) -> None:
        """Note the evidence of this moment, where it is nearer than before."""
        budget = budget_of(rollout.plan)
        for rail in rollout.evidence.rails:
            proof = rail.proof(budget)
            distance = proof.log_threshold - proof.log_e
            if rail.guardrail not in self._nearest or distance < self._nearest[rail.guardrail][0]:
                self._nearest[rail.guardrail] = distance, Closest.of(proof, seconds)

    def answers(self, rollout: Rollout) -> tuple[Answer, ...]:
        """Of every guardrail of the plan, the nearest to its threshold first and those without evidence last."""
        found = []
        for verdict in verdicts_of(rollout):
            distance, closest = self._nearest.get(verdict.guardrail, (float("inf"), None))
            found.append((distance, Answer(verdict.guardrail, verdict.level.label, closest)))
        return tuple(answer for _, answer in sorted(found, key=lambda item: item[0]))
