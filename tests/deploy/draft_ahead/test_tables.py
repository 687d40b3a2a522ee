"""What was measured beside what the cost model makes of step times alone."""

from __future__ import annotations

import pytest

from deploy.bench.draft_ahead.simulation import Times
from deploy.bench.draft_ahead.tables import measured_table
from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.plan import BASELINE, Cell
from deploy.bench.proposers.probe import Notes

CELL = Cell(0.0, 1, "chat")
LOOPBACK = Times(verify=(0.040, 0.045), draft=0.010, round_trip=0.0)


def notes(wait: float, ready: int) -> Notes:
    """Ten rounds of one drafted token each, all accepted."""
    return Notes(
        rounds=10,
        drafted=[10],
        accepted=[10],
        ready=ready,
        asked_steps=10,
        draft_seconds=10 * wait,
        verify_steps=10,
        verify_seconds=10 * 0.045,
    )


def blocks(rounds: int) -> list[Measured]:
    wobble = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0)
    return [
        Measured(round_, CELL, arm, 20, seconds, found)
        for round_ in range(rounds)
        for arm, seconds, found in (
            (BASELINE, 0.80, Notes()),
            ("serial", 0.55, notes(0.010, 0)),
            ("ahead", 0.49, notes(0.004 * wobble[round_], 6 if round_ % 2 else 4)),
        )
    ]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_hidden_wait_has_an_interval_and_the_model_stands_beside_what_was_measured() -> None:
    serial, ahead = (
        cells(line)
        for line in measured_table(blocks(6), "serial", "ahead", LOOPBACK)
        if line.startswith(("| serial", "| ahead"))
    )
    assert serial[2:] == ["1.45", "2.00", "0% (0% – 0%)", "10.0", "45.0", "55.0 (55.0 – 55.0)", "55.0", "–"]
    assert ahead[2:8] == ["1.60", "2.00", "50% (40% – 60%)", "4.0", "45.0", "49.0 (48.6 – 49.4)"]
    assert ahead[8] == "50.0", "45 ms and, of the rounds that were not ready, the half, 10 ms of drafting"
    hidden, low, high = (
        float(part) for part in ahead[9].replace("%", "").replace("(", "").replace(")", "").replace("–", "").split()
    )
    assert low < hidden < high
    assert hidden == pytest.approx(60, abs=1)


def test_too_few_rounds_give_no_interval() -> None:
    ahead = next(line for line in measured_table(blocks(2), "serial", "ahead", LOOPBACK) if line.startswith("| ahead"))
    assert cells(ahead)[-1] == "2 of 5 rounds"
