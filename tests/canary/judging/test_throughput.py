from __future__ import annotations

from dataclasses import replace

import pytest

from canary.verdict import Level
from canary.windows import ArmUsage
from tests.canary.judging.rails import STAGE, level, verdict, window

LIMIT = {"max_decrease": "5%"}
LAST = replace(STAGE, is_before_last=True)


def busy(completed: int, *, gpus: float = 1.0, saturated: int = 30) -> ArmUsage:
    """Thirty looks at one replica."""
    return ArmUsage(looks=30, samples=30, saturated=saturated, gpus=30 * gpus, completed=completed)


def windows(canary: ArmUsage, stable: ArmUsage, count: int = 60):
    return [window(usage=(canary, stable))] * count


def test_a_loss_at_peak_fails_and_a_small_one_does_not():
    assert level("peak_throughput", LIMIT, windows(busy(290), busy(300))) == Level.PASS
    found = verdict("peak_throughput", LIMIT, windows(busy(250), busy(300)))
    assert (found.level, found.unit) == (Level.FAIL, "percent")
    assert found.estimate == pytest.approx(-1 / 6)
    assert found.limit == -0.05
    assert found.interval is not None
    assert found.interval[1] is not None
    assert found.interval[1] < -0.05


def test_throughput_is_counted_per_gpu():
    two = busy(560, gpus=2.0)
    assert level("peak_throughput", LIMIT, windows(two, busy(280))) == Level.PASS
    assert level("peak_throughput", LIMIT, windows(two, busy(340))) == Level.FAIL


def test_a_path_with_room_to_spare_says_nothing_about_its_peak():
    found = verdict("peak_throughput", LIMIT, windows(busy(100, saturated=3), busy(300)))
    assert (found.level, found.samples) == (Level.PASS, 0)
    assert found.reason == "no window yet in which both paths were saturated"


def test_without_a_peak_the_rollout_waits_before_it_moves_everything():
    found = verdict("peak_throughput", LIMIT, windows(busy(290), busy(300), 2), LAST)
    assert found.level == Level.INSUFFICIENT
    assert found.reason == "2 of 5 saturated windows: wait for a peak, or send load"
    assert verdict("peak_throughput", LIMIT, windows(busy(290), busy(300), 5), LAST).level == Level.PASS


def test_too_few_completions_are_no_rate():
    found = verdict("peak_throughput", LIMIT, windows(busy(10), busy(29)))
    assert found.samples == 0
