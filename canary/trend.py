"""How did each path do lately? Bounded series of points, each the difference of the fleet's counters at two moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from canary.status import Band, PathPoint, TrendPoint
from canary.windows import ended, failures
from fleet.histogram import LogHistogram
from fleet.traffic import PathTally

LATEST, LONGEST = "30m", "12h"
TAIL = 0.95


@dataclass(frozen=True, slots=True)
class Grain:
    """How finely a series tells how much of the past."""

    seconds: float
    """Between two points, at least."""
    length: int
    """Points kept; the oldest make room."""


GRAINS: Mapping[str, Grain] = {LATEST: Grain(5.0, 360), LONGEST: Grain(60.0, 720)}


@dataclass(frozen=True, slots=True)
class Moment:
    """When a look was taken, and how traffic was divided then."""

    at: float
    """Seconds on the controller's clock, which measures the distance between points."""
    wall: float
    """Seconds since the Unix epoch, for people."""
    weight_set: float | None = None
    """Percent; None without a rollout."""
    weight_realised: float | None = None


class Series:
    """The points of one grain. Kept in memory only: a new controller begins a new series."""

    def __init__(self, grain: Grain) -> None:
        self._grain = grain
        self._points: deque[TrendPoint] = deque(maxlen=grain.length)
        self._since: float | None = None
        self._before: dict[str, PathTally] = {}

    def sample(self, moment: Moment, served: Mapping[str, PathTally]) -> None:
        """Add a point if one is due; the first look only tells where the counters start."""
        seconds = 0.0 if self._since is None else moment.at - self._since
        if self._since is not None and seconds < self._grain.seconds:
            return
        now = {path: _copy(tally) for path, tally in served.items()}
        if self._since is not None:
            paths = {path: _path_point(tally, self._before.get(path), seconds) for path, tally in served.items()}
            self._points.append(
                TrendPoint(
                    at=moment.wall,
                    seconds=seconds,
                    weight_set=moment.weight_set,
                    weight_realised=moment.weight_realised,
                    paths=paths,
                )
            )
        self._since, self._before = moment.at, now

    def points(self, after: float) -> list[TrendPoint]:
        """Those later than `after` (wall clock), oldest first."""
        return [point for point in self._points if point["at"] > after]


class Trend:
    """One series for each grain, by the span of time that it covers."""

    def __init__(self) -> None:
        self._series = {span: Series(grain) for span, grain in GRAINS.items()}

    def sample(self, moment: Moment, served: Mapping[str, PathTally]) -> None:
        for series in self._series.values():
            series.sample(moment, served)

    def points(self, span: str, after: float) -> list[TrendPoint]:
        """`span` is a key of `GRAINS`."""
        return self._series[span].points(after)


def _copy(tally: PathTally) -> PathTally:
    copy = PathTally()
    copy.merge(tally)
    return copy


def _path_point(now: PathTally, before: PathTally | None, seconds: float) -> PathPoint:
    part = _copy(now)
    if before is not None:
        part.merge(before, -1)
    positions = max((place for place, count in part.accepted_at.items() if count), default=-1) + 1
    return PathPoint(
        itl=_band(part.itl),
        ttft=_band(part.ttft),
        requests=ended(part),
        failed=failures(part).failures,
        tokens_per_second=part.output_tokens / seconds,
        rounds=part.rounds,
        drafted=part.drafted,
        accepted=part.accepted,
        accepted_at=[part.accepted_at.get(place, 0) for place in range(positions)],
    )


def _band(histogram: LogHistogram) -> Band | None:
    middle, tail = histogram.quantile(0.5), histogram.quantile(TAIL)
    return None if middle is None or tail is None else (middle, tail)
