"""What a sparse distribution is, what is no distribution, and what cutting one costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fleet.generation import SamplingParams
from replicas.engine.noise import exponentials, stream_key
from replicas.engine.race import distribution, draw, draw_sparse, likeliest
from replicas.speculation.rejection import MOST_TOKENS, Sparse, first_accepted
from replicas.speculation.tree import Draft

GOOD = Sparse((4, 1, 7), (0.5, 0.25, 0.25))
SAMPLINGS = [
    SamplingParams(seed=0, max_tokens=1),
    SamplingParams(seed=0, max_tokens=1, temperature=0.6, top_p=0.8),
    SamplingParams(seed=0, max_tokens=1, temperature=1.5, top_k=4, min_p=0.05),
]
rows = st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=12).map(lambda row: np.array(row, dtype=np.float32))


@pytest.mark.parametrize(
    "bad",
    [
        Sparse((), ()),
        Sparse((4, 1), (1.0,)),
        Sparse((4, 4), (0.5, 0.5)),
        Sparse((4, -1), (0.5, 0.5)),
        Sparse((4, 8), (0.5, 0.5)),
        Sparse((4, 1), (1.5, -0.5)),
        Sparse((4, 1), (1.0, 0.0)),
        Sparse((4, 1), (0.5, 0.51)),
        Sparse((4, 1), (math.nan, 0.5)),
        Sparse((4, 1), (math.inf, 0.5)),
        Sparse(tuple(range(MOST_TOKENS + 1)), (1 / (MOST_TOKENS + 1),) * (MOST_TOKENS + 1)),
    ],
)
def test_what_is_no_distribution_is_not_sound(bad: Sparse) -> None:
    assert GOOD.is_sound(8)
    assert not bad.is_sound(8 if len(bad.token_ids) < MOST_TOKENS else 10 * MOST_TOKENS)
    assert not Draft((4,), distributions=(bad,)).is_sound(8)


def test_a_draft_is_sound_only_if_its_tokens_could_have_been_drawn() -> None:
    assert Draft((1, 7), distributions=(GOOD, GOOD)).is_sound(8)
    assert not Draft((2,), distributions=(GOOD,)).is_sound(8)
    assert not Draft((1, 7), distributions=(GOOD,)).is_sound(8)
    assert not Draft((), distributions=(GOOD,)).is_sound(8)
    assert Draft((1, 7), parents=(-1, -1), distributions=(GOOD, GOOD)).is_sound(8)
    assert not Draft((7, 7), parents=(-1, -1), distributions=(GOOD, GOOD)).is_sound(8)
    assert not Draft((1, 7), parents=(-1, -1), distributions=(GOOD, Sparse.certain(7))).is_sound(8)
    assert Draft((1, 7), parents=(-1, 0), distributions=(GOOD, Sparse.certain(7))).is_sound(8)
    assert not Draft((8,)).is_sound(8)


@given(rows, st.sampled_from(SAMPLINGS), st.integers(1, 12))
def test_the_cut_distribution_is_the_whole_one_on_its_likeliest_tokens(
    row: np.ndarray, sampling: SamplingParams, count: int
) -> None:
    whole, cut = distribution(row, sampling), likeliest(row, sampling, count)
    assert cut.is_sound(len(row))
    assert len(cut.token_ids) == min(count, np.count_nonzero(whole))
    kept = list(cut.token_ids)
    assert whole[kept].min() >= np.delete(whole, kept).max(initial=0.0) - 1e-12
    assert cut.probabilities == pytest.approx(whole[kept] / whole[kept].sum(), rel=1e-6)
    assert all(np.float32(weight) == weight for weight in cut.weights)


@given(rows, rows, st.integers(1, 12))
def test_a_cut_costs_no_more_agreement_than_the_mass_it_leaves_out(p: np.ndarray, q: np.ndarray, count: int) -> None:
    size = min(len(p), len(q))
    target, whole = distribution(p[:size], SAMPLINGS[0]), distribution(q[:size], SAMPLINGS[0])
    cut = likeliest(q[:size], SAMPLINGS[0], count)
    kept = list(cut.token_ids)
    agreement = np.minimum(target[kept], cut.probabilities).sum()
    assert agreement >= np.minimum(target, whole).sum() - (1.0 - whole[kept].sum()) - 1e-6


def test_draws_follow_the_weights_and_can_be_drawn_again() -> None:
    keys = [stream_key(seed, 0, 0) for seed in range(2000)]
    drawn = [draw_sparse(GOOD, key) for key in keys]
    assert drawn == [draw_sparse(GOOD, key) for key in keys]
    observed = [drawn.count((token_id,)) for token_id in GOOD.token_ids]
    assert stats.chisquare(observed, 2000 * GOOD.probabilities).pvalue > 0.001


@pytest.mark.parametrize("size", [3, 300, 5000])
def test_a_draw_from_many_probabilities_is_the_race_over_all_of_them(size: int) -> None:
    random = np.random.default_rng(size)
    for key in range(30):
        probabilities = random.exponential(size=size) ** 3 * (random.random(size) < 0.5 + 0.5 * (key % 2))
        probabilities[key % size] += 0.1
        scores = np.full(size, -math.inf)
        allowed = np.flatnonzero(probabilities)
        scores[allowed] = np.log(probabilities[allowed]) - np.log(exponentials(key, allowed))
        assert draw(probabilities, key) == scores.argmax()


def test_further_draws_are_from_what_is_left_without_putting_back() -> None:
    drawn = [draw_sparse(GOOD, stream_key(seed, 0, 1), 5) for seed in range(2000)]
    assert all(sorted(tokens) == sorted(GOOD.token_ids) for tokens in drawn)
    seconds = [tokens[1] for tokens in drawn if tokens[0] == 1]
    left = GOOD.without(1)
    observed = [seconds.count(token_id) for token_id in left.token_ids]
    assert stats.chisquare(observed, len(seconds) * left.probabilities).pvalue > 0.001


@given(
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.integers(1, 4),
)
def test_whatever_the_guesses_the_answers_add_up_to_the_targets_distribution(
    p_weights: list[float], q_weights: list[float], count: int
) -> None:
    """Not drawn but added up: over every order of drawing, and the chance that each coin falls below p / q."""
    p = np.array(p_weights) / sum(p_weights)
    q = Sparse((0, 1, 2, 3), tuple(weight / sum(q_weights) for weight in q_weights))
    answer = np.zeros(4)
    for guesses in itertools.permutations(range(4), count):
        chance, left = 1.0, q
        for token_id in guesses:
            chance, left = chance * left.of(token_id), left.without(token_id)
        answer += chance * answers_to(guesses, p, q)
    assert answer == pytest.approx(p, abs=1e-9)


def answers_to(guesses: tuple[int, ...], p: np.ndarray, q: Sparse) -> np.ndarray:
    """The distribution of the committed token when these were guessed: every coin high or low enough to decide."""
    answer, reached, left = np.zeros(4), 1.0, q
    for index, token_id in enumerate(guesses):
        before = [1.0] * index
        _, target = first_accepted(guesses[:index], p, q, before)
        accepted = min(1.0, float(target[token_id]) / left.of(token_id))
        answer[token_id] += reached * accepted
        reached, left = reached * (1.0 - accepted), left.without(token_id)
        _, last = first_accepted(guesses[: index + 1], p, q, [1.0] * (index + 1))
    return answer + reached * last
