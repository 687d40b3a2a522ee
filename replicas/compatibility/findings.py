"""What was compared between a target and its proposer, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison. Without a problem the pair passes it; a note then says what is different and harmless."""

    what: str
    target: str
    proposer: str
    problem: str | None = None
    remedy: str | None = None
    """What to do about the problem."""
    note: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.problem is None


@dataclass(frozen=True, slots=True)
class PairReport:
    """All comparisons of one pair."""

    target: str
    method: str
    proposer: str | None
    """None where the method needs no model of its own."""
    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        return all(finding.is_ok for finding in self.findings)


def refusal(report: PairReport) -> str:
    """The problems of a refused pair in one line."""
    return f"{report.proposer or report.method} cannot propose for {report.target}: {problems(report.findings)}"


def problems(findings: Sequence[Finding]) -> str:
    """Each problem with its remedy."""
    return "; ".join(f"{f.what}: {f.problem} ({f.remedy})" for f in findings if not f.is_ok)
