"""Which limits can a plan set? One section per guardrail, each with its bounds and its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fleet.config import Section

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(value: object) -> object:
    """Seconds from '500ms', '30s', '10m' or '2h'."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value.strip()) if isinstance(value, str) else None
    if not found:
        raise ValueError(f"write a duration such as 500ms, 30s, 10m or 2h, not {value!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _share(unit: str, example: str) -> BeforeValidator:
    """A fraction from a number with its unit: bare numbers are refused because 10 and 0.1 look alike."""

    def parse(value: object) -> object:
        found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*{unit}", value.strip()) if isinstance(value, str) else None
        if not found:
            raise ValueError(f"write {example}, not {value!r}")
        return float(found[1]) / 100.0

    return BeforeValidator(parse)


Duration = Annotated[float, BeforeValidator(_duration)]
Percent = Annotated[float, _share("%", "a relative change such as 10%")]
Share = Annotated[float, _share("%", "a share such as 90%")]
Points = Annotated[float, _share("pp", "percentage points such as 0.5pp")]


def refuse_unknown(value: Any, known: Mapping[str, Any], what: str) -> Any:
    """The value as it is, or ValueError with a hint for the first key that is not known."""
    for key in value if isinstance(value, dict) else ():
        if key not in known:
            close = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known) or 'none'}"
            raise ValueError(f"unknown {what} '{key}'; {hint}")
    return value


class PlanSection(Section):
    """A part of a plan; a key that it does not have is refused with the one that was probably meant."""

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, value: Any) -> Any:
        return refuse_unknown(value, cls.model_fields, "key")


class Increase(PlanSection):
    """Of a p95, canary against stable."""

    max_increase: Percent = Field(ge=0, le=10)


class IncreaseOfRate(PlanSection):
    """Of a share of requests, canary against stable."""

    max_increase: Points = Field(ge=0, lt=1)


class QueueDelay(PlanSection):
    """p95 of the wait for a slot: an absolute increase, as most waits are near nothing."""

    max_increase: Duration = Field(ge=0, le=60)


class GapSlo(PlanSection):
    """99 % of the gaps between chunks last no longer. Not compared: a speculative step is longer by design."""

    max: Duration = Field(ge=0.001, le=60)


class KvPressure(PlanSection):
    """Share of time that the replicas' KV cache is fuller than `above`, canary against stable."""

    max_increase: Points = Field(ge=0, lt=1)
    above: Share = Field(0.9, gt=0, lt=1)


class PeakThroughput(PlanSection):
    """Completed requests per second and GPU in windows in which both paths are saturated."""

    max_decrease: Percent = Field(ge=0, lt=1)
    min_windows: int = Field(5, ge=1, description="Saturated windows asked for before everything moves.")


class OutOfMemory(PlanSection):
    """Allocation failures in canary replicas; the first one trips, whatever the statistics say."""

    max: int = 0

    @model_validator(mode="after")
    def _first_trips(self) -> OutOfMemory:
        if self.max != 0:
            raise ValueError("the first failure always trips: max must be 0")
        return self


class CrashLoop(PlanSection):
    """Three distinct canary replicas lost within 120 s; trips at once."""


class RealisedSplit(PlanSection):
    """Whether routers give the canary the share that was set. Trips at an error rate of 0.1 % and freezes."""


class AcceptanceDrop(PlanSection):
    """accepted/drafted per request, against a reference."""

    max_decrease: Percent = Field(ge=0, lt=1)
    reference: float | Literal["calibrate"] = Field(
        description="A number, or 'calibrate': learned from the attempt's own first requests, in each stratum."
    )
    strata: tuple[Literal["sampling", "prompt"], ...] = Field(
        ("sampling", "prompt"), max_length=2, description="What is judged apart; with 'calibrate' only."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuses_evidence(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("reference") == "evidence":
            raise ValueError("reference: evidence needs the plan's evidence; name its folder, a number or 'calibrate'")
        return value

    @model_validator(mode="after")
    def _reference_is_a_rate(self) -> AcceptanceDrop:
        if self.reference != "calibrate" and not 0 < self.reference <= 1:
            raise ValueError("reference must be above 0 and at most 1")
        if self.reference != "calibrate" and "strata" in self.model_fields_set and self.strata:
            raise ValueError("strata have references of their own: use reference: calibrate with them")
        return self


class Guardrails(Section):
    """What must not happen. `oom`, `crash_loop` and `realised_split` are on whether named or not."""

    itl_p95: Increase | None = None
    ttft_p95: Increase | None = None
    tpot_p95: Increase | None = None
    queue_delay: QueueDelay | None = None
    gap_p99: GapSlo | None = None
    stall: IncreaseOfRate | None = None
    error_rate: IncreaseOfRate | None = None
    cancel_rate: IncreaseOfRate | None = None
    completion_lag: IncreaseOfRate | None = None
    kv_pressure: KvPressure | None = None
    peak_throughput: PeakThroughput | None = None
    acceptance: AcceptanceDrop | None = None
    oom: OutOfMemory = OutOfMemory()
    crash_loop: CrashLoop = CrashLoop()
    realised_split: RealisedSplit = RealisedSplit()

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, value: Any) -> Any:
        return refuse_unknown(value, cls.model_fields, "guardrail")

    @property
    def statistical(self) -> tuple[str, ...]:
        """The guardrails among which alpha is divided: those that can take the canary back by statistics."""
        others = ("oom", "crash_loop", "realised_split")
        return tuple(name for name in type(self).model_fields if name not in others and getattr(self, name) is not None)
