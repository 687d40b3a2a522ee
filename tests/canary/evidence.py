"""Evidence for rollouts in tests."""

from __future__ import annotations

from typing import Any

from canary.evidence import MatrixEvidence

MEASURED = {"baseline": {"model.weights": "abc"}, "speculative": {"model.weights": "abc", "path.replicas": "1"}}


def matrix_evidence(**changes: Any) -> MatrixEvidence:
    value = {
        "folder": "evidence",
        "created": 1.0,
        "renew": "fleet bench matrix -f evidence/matrix.yaml -o evidence-2",
        "decision": "keep",
        "recommendation": "Roll speculative out, by a canary.",
        "fingerprints": MEASURED,
        "cells": [{"sampling": "greedy", "above": 0, "up_to": 4, "draft_length": 3}],
    }
    return MatrixEvidence.model_validate(value | changes)


def plan_on(evidence: MatrixEvidence, **changes: Any) -> dict[str, Any]:
    """A plan that rests on the evidence, as it lies in the journal."""
    steps = [{"weight": 50, "bake": "60s"}, {"weight": 100}]
    base = {"stable": "baseline", "canary": "speculative", "steps": steps, "window": "10s"}
    return {**base, "evidence": evidence.model_dump(mode="json"), **changes}
