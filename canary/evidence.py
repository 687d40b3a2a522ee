"""What does a rollout take from a load matrix: where speculation won, and on which fleet? Is that still the fleet?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from canary.limits import PlanSection
from fleet.config import PathName
from fleet.traffic import SamplingMode, WinningCell

Fingerprint = Mapping[str, str]
"""Part -> value."""
ABSENT = "nothing"
UNSET = "null"
"""The value of a setting that nobody sets; an absent part counts as such, as a later version may have brought it."""


class Span(PlanSection):
    """Where a share is to be expected."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class Cell(PlanSection):
    """A cell that the matrix kept: `above` < open requests on the canary's path ≤ `up_to`."""

    sampling: SamplingMode
    above: int = Field(ge=0)
    up_to: int = Field(ge=1)
    draft_length: int | None = Field(None, ge=1)
    acceptance: Span | None = Field(None, description="Mean per request, of a round, with drafts no longer than that.")

    def winning(self) -> WinningCell:
        return WinningCell(self.sampling, self.above, self.up_to, self.draft_length)


class MatrixEvidence(PlanSection):
    """A load matrix about one candidate, as far as a rollout needs it. `fleet canary start` makes it from a folder."""

    folder: str
    created: float = Field(description="Seconds since the Unix epoch.")
    renew: str = Field(description="The command that measures it again.")
    decision: Literal["keep", "drop", "inconclusive"]
    recommendation: str
    fingerprints: dict[PathName, dict[str, str]]
    cells: tuple[Cell, ...] = Field((), description="Where it wins.")
    losing: tuple[str, ...] = Field((), description="Lengths for which it loses in cells that are kept.")
    kinds: dict[str, int] = Field(default_factory=dict, description="Requests by `fleet.traffic_kinds.kind_of`.")
    acceptance: dict[SamplingMode, Span] = Field(default_factory=dict, description="Mean per request, of a round.")
    peak_open: int | None = Field(None, ge=1, description="Most requests open at once that were measured.")

    def expected_acceptance(self, *, where_it_wins: bool) -> Mapping[SamplingMode, Sequence[Span]]:
        """Of each sampling mode every span that its requests may lie in.

        Where only the winning cells are served, each may draft less than was measured, and so accept a larger share.
        """
        if not where_it_wins:
            return {mode: (span,) for mode, span in self.acceptance.items()}
        spans: dict[SamplingMode, list[Span]] = {}
        for cell in self.cells:
            if span := cell.acceptance or self.acceptance.get(cell.sampling):
                spans.setdefault(cell.sampling, []).append(span)
        return spans


def changed_parts(was: Fingerprint, now: Fingerprint) -> list[str]:
    """Every part that differs, one line each."""
    return [
        f"{part} was {was.get(part, ABSENT)}, is {now.get(part, ABSENT)}"
        for part in sorted(was.keys() | now.keys())
        if was.get(part, UNSET) != now.get(part, UNSET)
    ]


def changes(measured: Mapping[str, Fingerprint], live: Mapping[str, Fingerprint]) -> list[str]:
    """What differs between the fleet that was measured and the one that runs; a path without replicas says nothing."""
    return [
        f"{path}: {change}"
        for path, was in sorted(measured.items())
        if was and live.get(path)
        for change in changed_parts(was, live[path])
    ]


def objections(
    evidence: MatrixEvidence, live: Mapping[str, Fingerprint], paths: tuple[str, str], *, needs_cells: bool
) -> Iterator[str]:
    """Why a rollout of the second of `paths` beside the first must not rest on this evidence, one line each."""
    about = f"evidence in {evidence.folder}"
    unknown = [path for path in paths if not evidence.fingerprints.get(path)]
    if unknown:
        yield (
            f"{about} does not say on which fleet path '{unknown[0]}' was measured, so nobody knows whether it still "
            f"holds; measure with the fleet's admin token: {evidence.renew}"
        )
    if stale := changes(evidence.fingerprints, live):
        yield f"{about} is stale: {'; '.join(stale)}; renew it: {evidence.renew}"
    if evidence.decision == "drop":
        yield f"{about} speaks against it: {evidence.recommendation}"
    elif needs_cells and not evidence.cells:
        yield f"speculate: {about} shows no closed-loop cell where it wins: {evidence.recommendation}"
