import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.bootstrap import PairedEffect, holm, holm_level, quantile_ratio, rounds_needed


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_few_rounds_without_an_effect_are_called_an_effect_as_seldom_as_promised(kind: str) -> None:
    draws = np.random.default_rng(11)
    false = covered = 0
    trials = 400
    for trial in range(trials):
        values = draws.normal(0, 0.1, 8) if kind == "normal" else draws.gamma(2.0, 0.1, 8) - 0.2
        effect = PairedEffect(values.tolist(), trial)
        seen = effect.ratio()
        covered += seen.low <= 1.0 <= seen.high
        false += min(effect.p_above(0.0), effect.p_below(0.0)) <= 0.025
    # 5 % of 400 is 20; three standard deviations are 13.
    assert false <= 33
    assert covered >= trials - 33


def test_a_real_effect_is_seen_and_its_interval_covers_it() -> None:
    values = np.random.default_rng(5).normal(math.log(1.2), 0.03, 8).tolist()
    effect = PairedEffect(values, 0)
    seen = effect.ratio()
    assert 1.1 < seen.low < 1.2 < seen.high < 1.3
    assert effect.p_above(math.log(1.05)) < 0.005
    assert effect.p_below(0.0) == 1.0


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=12), st.floats(-0.5, 0.5))
def test_p_values_agree_with_each_other(values: list[float], bound: float) -> None:
    effect = PairedEffect(values, 0)
    above, below = effect.p_above(bound), effect.p_below(bound)
    assert 0 < above <= 1
    assert 0 < below <= 1
    assert max(above, below) == 1.0
    assert effect.p_above(bound - 0.1) <= above
    assert effect.p_below(bound + 0.1) <= below


def test_rounds_that_all_agree_are_a_point_and_as_sure_as_the_resamples_allow() -> None:
    effect = PairedEffect([0.2] * 6, 0)
    assert effect.ratio().low == effect.ratio().high == pytest.approx(math.exp(0.2))
    assert effect.p_above(0.1) < 0.001
    assert effect.p_above(0.3) == 1.0


def test_holm_is_what_its_definition_says() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float], alpha: float) -> None:
    rejected = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - rank) > alpha:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(holm(p_values)) if p <= alpha} == rejected


@given(st.lists(st.floats(0, 1), max_size=6), st.floats(0.001, 0.5))
def test_holm_claims_what_is_at_most_its_level(p_values: list[float], alpha: float) -> None:
    claimed = {index for index, p in enumerate(holm(p_values)) if p <= alpha * (1 - 1e-9)}
    level = holm_level(p_values, alpha)
    assert claimed <= {index for index, p in enumerate(p_values) if p <= level}
    assert not any(p <= level for p, adjusted in zip(p_values, holm(p_values), strict=True) if adjusted > alpha * 1.001)


def test_a_ratio_of_quantiles_is_that_of_the_pooled_samples() -> None:
    draws = np.random.default_rng(2)
    before = [draws.lognormal(0, 0.3, size) for size in (40, 60, 50, 50, 45)]
    after = [part / 1.5 for part in before]
    for q in (0.5, 0.95):
        seen = quantile_ratio(before, after, q, 0)
        assert seen is not None
        assert (seen.estimate, seen.low, seen.high) == pytest.approx((1.5, 1.5, 1.5))
    pooled = np.sort(np.concatenate(before))
    flat = [np.ones(5) for _ in before]
    seen = quantile_ratio(before, flat, 0.5, 0)
    assert seen is not None
    assert seen.estimate == pytest.approx(pooled[math.ceil(0.5 * len(pooled)) - 1])
    assert seen.low < seen.estimate < seen.high


def test_a_ratio_of_nothing_is_unknown() -> None:
    nothing = [np.array([]) for _ in range(3)]
    assert quantile_ratio(nothing, [np.ones(2)] * 3, 0.5, 0) is None
    assert quantile_ratio([], [], 0.5, 0) is None


def test_intervals_are_finite_from_five_rounds_on() -> None:
    for values in itertools.islice(itertools.permutations([0.0, 0.1, 0.2, 0.3, 5.0]), 3):
        seen = PairedEffect(values, 1).ratio()
        assert 0 < seen.low < seen.estimate < seen.high < math.inf


def test_as_many_rounds_as_are_proposed_do_tell_four_times_out_of_five() -> None:
    draws = np.random.default_rng(4)
    seen = PairedEffect([0.02, 0.14, 0.08, -0.02, 0.18], 0)  # mean 0.08, standard deviation 0.083
    needed = rounds_needed(seen, seen.mean, alpha=0.01)
    assert needed is not None
    assert 10 <= needed <= 25
    told = sum(PairedEffect(draws.normal(0.08, 0.083, needed).tolist(), n).p_above(0.0) <= 0.01 for n in range(200))
    assert 0.68 <= told / 200 <= 0.92
    assert rounds_needed(seen, 0.0001, alpha=0.01) is None
