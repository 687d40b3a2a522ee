"""What must the controller still know after a kill -9, beside the rollout itself? Named values for the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from canary import calibrated
from canary.calibrated import Calibrated
from canary.windows import OpenWindow
from fleet.traffic import Eligibility, PathTally, SamplingMode, Split, WinningCell


@dataclass(slots=True)
class Memory:
    """Everything here is written in the same transaction as the events that changed it."""

    split: Split
    stable: str
    """The path that holds the traffic outside rollouts."""
    clock_seconds: float = 0.0
    """The rollout's clock: it runs only while a controller runs."""
    split_at: float = 0.0
    """On that clock, when the present split was decided."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Last report taken, by router; the one heard of last stands last."""
    window: OpenWindow | None = None
    served: dict[str, PathTally] = field(default_factory=dict)
    """Everything that was ever served, by path: the counters of /metrics."""
    trips: dict[str, int] = field(default_factory=dict)
    """How often each guardrail took a canary out."""
    preemptions: dict[str, int] = field(default_factory=dict)
    draft_link: dict[str, dict[str, int]] = field(default_factory=dict)
    """What happened between targets and their draft workers: by path, then by event."""
    notified: dict[str, int] = field(default_factory=dict)
    """Up to which event each webhook has been told, by its name in the config."""
    webhook_failures: dict[str, int] = field(default_factory=dict)
    """Tries that each webhook did not take."""
    calibrations: tuple[Calibrated, ...] = ()
    """Oldest first, at most one for a plan."""

    def count(self, path: str, preemptions: int, draft_link: Mapping[str, int]) -> None:
        """Add what a replica of a path has reported."""
        self.preemptions[path] = self.preemptions.get(path, 0) + preemptions
        self.draft_link[path] = dict(Counter(self.draft_link.get(path, {})) + Counter(draft_link))

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """JSON-ready values by name; see `NAMES`."""
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> Any:
        match name:
            case "split":
                return {**asdict(self.split), "at": self.split_at, "fleet_stable": self.stable}
            case "window":
                return None if self.window is None else self.window.to_json()
            case "served":
                return {path: tally.to_json() for path, tally in self.served.items()}
            case "clock":
                return self.clock_seconds
            case "sequences":
                return self.sequences
            case "counters":
                return {
                    "trips": self.trips,
                    "preemptions": self.preemptions,
                    "draft_link": self.draft_link,
                    "webhook_failures": self.webhook_failures,
                }
            case "notified":
                return self.notified
            case "calibrations":
                return calibrated.written(self.calibrations)
            case _:
                raise KeyError(name)

    @classmethod
    def recall(cls, values: Mapping[str, Any]) -> Memory:
        """From the values of a journal that has been written to."""
        split = values["split"]
        window = values["window"]
        return cls(
            split=_split(split),
            stable=split["fleet_stable"],
            clock_seconds=float(values["clock"]),
            split_at=float(split["at"]),
            sequences={router: int(number) for router, number in values["sequences"].items()},
            window=None if window is None else OpenWindow.from_json(window),
            served={path: PathTally.from_json(tally) for path, tally in values["served"].items()},
            trips=dict(values["counters"]["trips"]),
            preemptions=dict(values["counters"]["preemptions"]),
            draft_link={path: dict(counts) for path, counts in values["counters"].get("draft_link", {}).items()},
            notified={name: int(number) for name, number in values.get("notified", {}).items()},
            webhook_failures=dict(values["counters"].get("webhook_failures", {})),
            calibrations=calibrated.recalled(values.get("calibrations", [])),
        )


NAMES = ("split", "window", "served", "clock", "sequences", "counters", "notified", "calibrations")


def _split(value: Mapping[str, Any]) -> Split:
    rule = value["eligible"]
    eligible = Eligibility(
        rule["max_prompt_tokens"],
        rule["min_max_tokens"],
        None if rule["sampling"] is None else SamplingMode(rule["sampling"]),
        tuple(rule["tenants"]),
        tuple((name, wanted) for name, wanted in rule["headers"]),
        None if (cells := rule.get("cells")) is None else tuple(_cell(cell) for cell in cells),
    )
    return Split(value["version"], value["stable"], value["canary"], value["canary_percent"], value["salt"], eligible)


def _cell(value: Mapping[str, Any]) -> WinningCell:
    return WinningCell(SamplingMode(value["sampling"]), value["above"], value["up_to"], value["draft_length"])
