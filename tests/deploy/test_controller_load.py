"""The load on a controller is what it says it is; the figures of a large fleet are for `make bench-controller`."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.controller_load import REPORT_SECONDS, Measured, measure, rows, samples


def test_a_report_carries_every_request_and_token_and_everything_that_is_judged() -> None:
    for report in samples(64, seed=3, count=5):
        tallies = report.compared
        assert sum(tally.assigned for tally in tallies.values()) == 64
        assert all(tally.output_tokens == 20 * tally.assigned for tally in tallies.values())
        assert all(tally.itl.total + tally.assigned <= tally.output_tokens for tally in tallies.values())
        assert 0 < report.control["baseline"].assigned < tallies["baseline"].assigned
        canary = tallies["speculative"]
        assert canary.request_acceptance.total == canary.assigned == sum(h.total for h in canary.acceptance_by.values())
        judged = (canary.ttft, canary.tpot, canary.gap, canary.stall, canary.queue, canary.e2e)
        assert all(histogram.total > 0 for histogram in judged)


def test_a_small_fleet_is_judged_and_taken_back_within_one_report_of_every_router(tmp_path: Path) -> None:
    found = measure(tmp_path, routers=5, requests_per_second=100, seconds=6)
    assert 0 < found.rollback_seconds <= REPORT_SECONDS + 0.01
    assert 0 < found.tick_p50 <= found.tick_p99 <= found.tick_max
    assert found.busy_share > 0


@pytest.mark.slow
def test_memory_stays_flat_however_long_a_rollout_is_reported(tmp_path: Path) -> None:
    found = measure(tmp_path, routers=200, requests_per_second=50_000, seconds=12)
    early, late = found.memory_mib
    assert late - early < 8


def test_the_table_shows_every_figure() -> None:
    shown = dict(rows(Measured(0.05, 0.06, 0.07, 0.5, 0.25, (100.0, 101.0))))
    assert list(shown.values()) == ["50.0 / 60.0 / 70.0 ms", "50% of one core", "0.25 s", "100 / 101 MiB"]
