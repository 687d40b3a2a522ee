"""The noise is what it says: exponential, independent, and a function of its four keys alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from replicas.engine.noise import BLOCK_TOKENS, exponentials, smallest_of_blocks, stream_key
from tests.replicas.engine import reference

TOKENS = np.arange(40_000)
words = st.integers(-(2**63), 2**64 - 1)


@given(words, st.integers(0, 20), st.integers(0, 10**6), st.lists(st.integers(0, 300_000), min_size=1, max_size=5))
def test_it_agrees_with_plain_integer_arithmetic(seed: int, choice: int, position: int, token_ids: list[int]) -> None:
    found = exponentials(stream_key(seed, choice, position), np.array(token_ids))
    wanted = [reference.exponential(seed, choice, position, token_id) for token_id in token_ids]
    assert found.tolist() == pytest.approx(wanted, rel=1e-14)


def test_a_token_has_its_noise_whichever_others_are_looked_at() -> None:
    key = stream_key(1, 2, 3)
    whole = exponentials(key, TOKENS)
    chosen = np.array([39_999, 5, 64, 63, 5])
    assert exponentials(key, chosen).tolist() == whole[chosen].tolist()


def test_it_is_exponential() -> None:
    noise = exponentials(stream_key(7, 0, 0), TOKENS)
    assert stats.kstest(noise, "expon").pvalue > 0.001
    bins = np.bincount((np.exp(-noise) * 256).astype(int), minlength=256)
    assert stats.chisquare(bins).pvalue > 0.001


def test_the_smallest_of_a_block_is_the_smallest_of_its_tokens() -> None:
    key = stream_key(8, 0, 0)
    noise = exponentials(key, TOKENS).reshape(-1, BLOCK_TOKENS)
    smallest, holder = smallest_of_blocks(key, np.arange(len(noise)))
    assert smallest.tolist() == noise.min(axis=1).tolist()
    assert holder.tolist() == noise.argmin(axis=1).tolist()
    assert stats.chisquare(np.bincount(holder, minlength=BLOCK_TOKENS)).pvalue > 0.001


def test_every_place_in_a_block_has_the_same_distribution() -> None:
    noise = np.concatenate([exponentials(stream_key(9, 0, position), TOKENS) for position in range(4)])
    for place in (0, 31, 63):
        assert stats.kstest(noise.reshape(-1, BLOCK_TOKENS)[:, place], "expon").pvalue > 0.001


def test_neighbouring_seeds_choices_positions_and_tokens_are_unrelated() -> None:
    here = np.exp(-exponentials(stream_key(5, 0, 5), TOKENS))
    for other in (stream_key(6, 0, 5), stream_key(5, 1, 5), stream_key(5, 0, 6), stream_key(0, 5, 5)):
        correlation = np.corrcoef(here, np.exp(-exponentials(other, TOKENS)))[0, 1]
        assert abs(correlation) < 4 / np.sqrt(len(TOKENS))
    for distance in (1, 2, BLOCK_TOKENS):
        correlation = np.corrcoef(here[:-distance], here[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(len(TOKENS))


def test_one_token_over_many_positions_and_seeds_is_exponential() -> None:
    token = np.array([1234])
    over_positions = [exponentials(stream_key(3, 0, position), token)[0] for position in range(4000)]
    over_seeds = [exponentials(stream_key(seed, 0, 3), token)[0] for seed in range(4000)]
    assert stats.kstest(over_positions, "expon").pvalue > 0.001
    assert stats.kstest(over_seeds, "expon").pvalue > 0.001
    assert abs(np.corrcoef(over_positions[:-1], over_positions[1:])[0, 1]) < 4 / np.sqrt(4000)
