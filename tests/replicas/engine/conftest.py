"""The ways in which a model on a CPU runs a step of few rows."""

from __future__ import annotations

import pytest

from replicas.engine import model


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models loaded from now on launch every operation, as they would on a GPU."""
    monkeypatch.setattr(model, "can_fuse", lambda decoder: False)


@pytest.fixture(params=["fused", "launched"])
def way(request: pytest.FixtureRequest) -> None:
    """Either way; the families that no kernels are for are launched twice."""
    if request.param == "launched":
        request.getfixturevalue("launched")
