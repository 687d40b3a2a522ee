import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.arrivals import gamma_arrivals, replayed_arrivals, spread_ties


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (16.0, 0.25)])
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(burstiness: float, variation: float) -> None:
    gaps = np.diff(gamma_arrivals(20_000, rate_per_second=5.0, burstiness=burstiness, seed=3), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_the_same_seed_gives_the_same_arrivals_and_another_does_not() -> None:
    first, again, other = (gamma_arrivals(10, 1.0, 1.0, seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=20), st.integers(1, 60), st.integers(0, 100))
def test_a_replay_ascends_from_zero_and_goes_round_the_trace(times: list[float], count: int, seed: int) -> None:
    arrivals = replayed_arrivals(sorted(times), count, 1.0, seed)
    assert len(arrivals) == count
    assert arrivals[0] == 0.0
    assert (np.diff(arrivals) >= 0).all()


def test_a_replay_has_the_gaps_of_the_trace_scaled() -> None:
    recorded = [0.0, 1.0, 3.0, 3.5]
    circle = [1.0, 2.0, 0.5, 3.5 / 3]
    gaps = np.diff(replayed_arrivals(recorded, 9, time_scale=0.5, seed=0)) / 0.5
    turns = [[circle[(start + offset) % 4] for offset in range(8)] for start in range(4)]
    assert any(gaps == pytest.approx(turn) for turn in turns)


def test_arrivals_that_a_coarse_clock_put_together_are_spread_over_its_tick() -> None:
    assert spread_ties([0.0, 0.0, 0.0, 3.0, 3.0, 6.0]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.5, 6.0]
    assert spread_ties([0.0, 1.0, 5.0]).tolist() == [0.0, 1.0, 5.0]
