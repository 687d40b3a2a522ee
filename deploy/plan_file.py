"""What does a plan file ask for, with the evidence that it names read in?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canary.evidence import MatrixEvidence
from canary.plan import read_plan
from deploy.lint import require_plan
from fleet.config import load_yaml
from fleet.errors import ConfigError


def read_plan_file(file: Path, evidence: Path | None = None) -> dict[str, Any]:
    """The plan as the controller takes it, after it was checked by itself. Raises ConfigError.

    `evidence` comes before the plan's own, which is looked for beside the plan.
    """
    plan = dict(load_yaml(file))
    require_plan(file, plan)
    folder = evidence or _named(plan, file)
    try:
        if folder is not None:
            plan = _with_evidence(plan, folder)
        read_plan(plan)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return plan


def _named(plan: dict[str, Any], file: Path) -> Path | None:
    name = plan.get("evidence")
    return file.parent / Path(name).expanduser() if isinstance(name, str) else None


def _with_evidence(plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    # Imports scipy and pydantic's models of a report: only a plan with evidence should wait for them.
    from deploy.evidence.summary import evidence_for

    found = evidence_for(folder, str(plan.get("stable")), str(plan.get("canary")))
    return _with_reference({**plan, "evidence": found.model_dump(mode="json")}, found)


def _with_reference(plan: dict[str, Any], evidence: MatrixEvidence) -> dict[str, Any]:
    """`acceptance: {reference: evidence}` becomes the lowest middle of what is expected of the sampling modes."""
    guardrails = found if isinstance(found := plan.get("guardrails"), dict) else {}
    acceptance = guardrails.get("acceptance")
    if not isinstance(acceptance, dict) or acceptance.get("reference") != "evidence":
        return plan
    expected = evidence.expected_acceptance(where_it_wins=plan.get("speculate") == "where_it_wins")
    middles = [span.middle for spans in expected.values() for span in spans]
    if not middles:
        raise ConfigError(f"guardrails.acceptance: {evidence.folder} measured no acceptance to refer to")
    return {**plan, "guardrails": {**guardrails, "acceptance": {**acceptance, "reference": min(middles)}}}
