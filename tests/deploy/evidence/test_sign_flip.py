import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.sign_flip import sign_flip_p


@given(st.lists(st.integers(-6, 6), max_size=8))
def test_it_is_the_share_of_all_ways_to_sign_the_differences_that_are_at_least_as_bad(differences: list[int]) -> None:
    flips = itertools.product((-1, 1), repeat=len(differences))
    sums = [sum(sign * abs(value) for sign, value in zip(flip, differences, strict=True)) for flip in flips]
    share = sum(total >= sum(differences) for total in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(share)


@pytest.mark.parametrize("requests", [1, 8, 500])
def test_how_many_requests_fail_in_a_round_makes_two_bad_rounds_no_surer(requests: int) -> None:
    assert sign_flip_p([0, requests, 0, 0, requests, 0]) == 0.25


def test_worse_in_every_round_is_as_sure_as_the_rounds_allow() -> None:
    assert sign_flip_p([2, 1, 3, 1, 2, 2, 1, 4]) == 1 / 2**8
    assert sign_flip_p([-2, -1, -3]) == 1.0


def test_many_rounds_are_still_exact() -> None:
    assert sign_flip_p([1] * 60) == pytest.approx(2.0**-60)
    draws = np.random.default_rng(0)
    p_values = [sign_flip_p(draws.integers(-3, 4, 40).tolist()) for _ in range(300)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.09
