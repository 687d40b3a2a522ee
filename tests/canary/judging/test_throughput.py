from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from canary.judging.accusation import Budget, Moment
from canary.judging.throughput import ThroughputRail
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
    found = verdict("peak_throughput", LIMIT, windows(busy(290), busy(300), 3), LAST)
    assert found.level == Level.INSUFFICIENT
    told = "2 of 5 saturated windows compared (1 more until each path should have completed 100 requests)"
    assert found.reason == f"{told}: wait for a peak, or send load"
    assert verdict("peak_throughput", LIMIT, windows(busy(290), busy(300), 6), LAST).level == Level.PASS


def test_small_counts_are_compared_in_longer_blocks_and_the_wait_says_so():
    found = verdict("peak_throughput", LIMIT, windows(busy(25), busy(30), 2), LAST)
    told = "0 of 5 saturated windows compared (3 more until each path should have completed 100 requests)"
    assert (found.level, found.reason) == (Level.INSUFFICIENT, f"{told}: wait for a peak, or send load")
    assert verdict("peak_throughput", LIMIT, windows(busy(30), busy(30), 20), LAST).level == Level.PASS


@pytest.mark.parametrize("completed", [0, 5, 20])
def test_a_canary_too_slow_to_complete_much_is_found_all_the_same(completed):
    found = verdict("peak_throughput", LIMIT, windows(busy(completed), busy(30), 120), LAST)
    assert found.level == Level.FAIL


def test_a_path_that_completes_nothing_on_stable_is_no_yardstick():
    found = verdict("peak_throughput", LIMIT, windows(busy(30), busy(0), 30), LAST)
    assert found.reason.startswith("0 of 5 saturated windows compared (30 seen, in which stable completed nothing)")


def rolled_back(stable: tuple[float, int], canary: tuple[float, int], runs: int = 40) -> int:
    """Of so many A/A rollouts of 80 windows, each arm given by its mean completions in a window and its GPUs."""
    source, found = np.random.default_rng(7), 0
    for _ in range(runs):
        rail, budget = ThroughputRail.start(0.05, 5, 1.0), Budget(0.05, 0.05)
        for _ in range(80):
            arms = (busy(int(source.poisson(mean)), gpus=gpus) for mean, gpus in (canary, stable))
            rail = rail.observe(window(usage=(next(arms), next(arms))), Moment())
            if rail.proof(budget).is_reached:
                found += 1
                break
    return found


@pytest.mark.parametrize(
    ("stable", "canary"),
    [
        pytest.param((28, 1), (112, 4), id="equal, the canary with four times the GPUs"),
        pytest.param((28, 1), (112 * 0.95, 4), id="at the limit, the canary with four times the GPUs"),
        pytest.param((112, 4), (28 * 0.95, 1), id="at the limit, stable with four times the GPUs"),
        pytest.param((30, 1), (30 * 0.95, 1), id="at the limit, alike"),
    ],
)
def test_a_canary_within_its_limit_is_kept_whichever_path_has_the_small_counts(stable, canary):
    assert rolled_back(stable, canary) <= 5, "more than 5 of 40 have a chance of 1 % at an error rate of 5 %"


def test_a_loss_of_a_tenth_is_found():
    assert rolled_back((300, 1), (270, 1), runs=10) == 10
