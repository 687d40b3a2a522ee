"""The rejection rule with real draws on a small vocabulary: the target's distribution, and the acceptance due."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fleet.generation import SamplingParams
from replicas.engine import judging
from replicas.engine.block import Block
from replicas.engine.judging import judged_block
from replicas.engine.noise import Purpose, coin, stream_key
from replicas.engine.race import draw_sparse
from replicas.engine.sampling import Draw, Unusable
from replicas.speculation.rejection import Sparse, is_accepted, residual
from replicas.speculation.tree import Draft
from tests.replicas.engine import reference
from tests.replicas.engine.test_coupling import (
    ADJUSTED,
    DRAFT,
    LENGTH,
    PLAIN,
    PROMPT,
    SAMPLER,
    TARGET,
    TRUNCATED,
    VOCABULARY,
    exact,
    fits,
    rows,
)

SEEDS = range(800)
FEW_AND_ALL = pytest.mark.parametrize(
    "seeds", [SEEDS[:200], pytest.param(SEEDS, marks=pytest.mark.slow)], ids=["few", "all"]
)


def drafted_chain(sampling: SamplingParams, output: list[int], count: int, model: np.ndarray) -> Draft:
    """A draft model that names what it drew from."""
    tokens: list[int] = []
    distributions: list[Sparse] = []
    for _ in range(count):
        (drawn,) = SAMPLER.drafts(
            rows(model, [*PROMPT, *output, *tokens], 1), [Draw(sampling, 0, PROMPT, output + tokens)], [1]
        )
        assert drawn is not None
        tokens += drawn[0]
        distributions.append(drawn[1])
    return Draft(tuple(tokens), distributions=tuple(distributions))


def judged(sampling: SamplingParams, output: list[int], draft: Draft) -> Block:
    draws = [Draw(sampling, 0, PROMPT, [*output, *draft.token_ids[:row]]) for row in range(len(draft) + 1)]
    return judged_block(SAMPLER, draft, rows(TARGET, [*PROMPT, *output, *draft.token_ids], len(draws)), draws)


def drafted_tree(sampling: SamplingParams, output: list[int], model: np.ndarray) -> Draft:
    """Two guesses at the next token, and two after each of them."""
    tokens: list[int] = []
    parents: list[int] = []
    distributions: list[Sparse] = []
    for parent in (-1, 0, 1):
        before = [*output, *([] if parent < 0 else [tokens[parent]])]
        (drawn,) = SAMPLER.drafts(rows(model, [*PROMPT, *before], 1), [Draw(sampling, 0, PROMPT, before)], [2])
        assert drawn is not None
        tokens += drawn[0]
        parents += [parent] * len(drawn[0])
        distributions += [drawn[1]] * len(drawn[0])
    return Draft(tuple(tokens), tuple(parents), tuple(distributions))


@FEW_AND_ALL
@pytest.mark.parametrize("sampling", [PLAIN, TRUNCATED], ids=["plain", "truncated"])
def test_with_trees_too_outputs_follow_the_targets_distribution(sampling: SamplingParams, seeds: range) -> None:
    outputs, accepted = [], 0
    for seed in seeds:
        seeded, output = replace(sampling, seed=seed), list[int]()
        while len(output) < LENGTH:
            draft = drafted_tree(seeded, output, DRAFT)
            assert draft.is_sound(VOCABULARY)
            branches = [[*output, *draft.branch(node)] for node in range(-1, len(draft))]
            logits = torch.cat([rows(TARGET, [*PROMPT, *branch], 1) for branch in branches])
            block = judged_block(SAMPLER, draft, logits, [Draw(seeded, 0, PROMPT, branch) for branch in branches])
            assert [draft.token_ids[node] for node in block.path] == list(block.token_ids[:-1])
            output += block.token_ids
            accepted += len(block.path)
        outputs.append(tuple(output[:LENGTH]))
    assert fits(Counter(outputs), exact(sampling), len(outputs))
    assert accepted > len(outputs)


def generate(sampling: SamplingParams, drafts: SamplingParams, model: np.ndarray = DRAFT) -> tuple[int, ...]:
    output: list[int] = []
    while len(output) < LENGTH:
        output += judged(sampling, output, drafted_chain(drafts, output, 2, model)).token_ids
    return tuple(output[:LENGTH])


CASES = {
    "plain": (PLAIN, "sampled"),
    "truncated": (TRUNCATED, "sampled"),
    "adjusted": (ADJUSTED, "sampled"),
    "hotter-draft": (TRUNCATED, "hotter"),
    "greedy-draft": (ADJUSTED, "greedy"),
}


@FEW_AND_ALL
@pytest.mark.parametrize(("sampling", "how"), CASES.values(), ids=CASES)
def test_outputs_follow_the_targets_distribution(sampling: SamplingParams, how: str, seeds: range) -> None:
    outputs = []
    for seed in seeds:
        seeded = replace(sampling, seed=seed)
        drafts = {
            "sampled": seeded,
            "hotter": replace(PLAIN, seed=seed, temperature=1.7),
            "greedy": replace(seeded, temperature=0.0),
        }[how]
        outputs.append(generate(seeded, drafts))
    assert fits(Counter(outputs), exact(sampling), len(outputs))


def test_greedy_outputs_are_the_targets_whatever_was_drafted() -> None:
    greedy = replace(PLAIN, temperature=0.0)
    (expected,) = [output for output, probability in exact(greedy).items() if probability]
    assert {generate(greedy, replace(PLAIN, seed=seed)) for seed in range(20)} == {expected}


def test_agreement_is_one_minus_the_distance_of_the_distributions() -> None:
    accepted = sum(
        len(judged(seeded, [], drafted_chain(seeded, [], 1, DRAFT)).path)
        for seeded in (replace(PLAIN, seed=seed) for seed in SEEDS)
    )
    p, q = (np.array(reference.softmax(model[PROMPT[-2], PROMPT[-1]].tolist(), 1.0)) for model in (TARGET, DRAFT))
    assert stats.binomtest(accepted, len(SEEDS), float(np.minimum(p, q).sum())).pvalue > 0.001


def test_a_draft_that_draws_from_the_targets_own_distribution_is_always_accepted() -> None:
    for seed in range(50):
        seeded = replace(PLAIN, seed=seed)
        assert len(judged(seeded, [], drafted_chain(seeded, [], 3, TARGET)).path) == 3


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(any),
    st.lists(st.floats(0, 1), min_size=2, max_size=2).filter(any),
)
def test_what_is_left_after_a_rejection_is_a_distribution_over_what_q_left(p: list[float], q: list[float]) -> None:
    probabilities = np.array(p) / sum(p)
    sparse = Sparse((1, 3), (q[0] / sum(q), q[1] / sum(q)))
    left = residual(probabilities, sparse)
    assert left.sum() == pytest.approx(1.0)
    expected = [max(0.0, own - sparse.of(token_id)) for token_id, own in enumerate(probabilities.tolist())]
    if sum(expected) > 1e-9:
        assert left == pytest.approx(np.array(expected) / sum(expected))
    else:
        assert left == pytest.approx(probabilities)


def test_what_neither_side_could_have_drawn_is_never_accepted() -> None:
    p = np.array([0.0, 1.0])
    assert not is_accepted(0, p, Sparse.certain(0), 0.0)
    assert not is_accepted(1, p, Sparse.certain(0), 0.0)
    assert is_accepted(1, p, Sparse((1,), (1.0,)), 1 - 2**-53)


def test_coins_are_uniform_and_independent_of_the_tokens_noise() -> None:
    coins = [coin(stream_key(7, 0, position, Purpose.COIN)) for position in range(2000)]
    assert stats.kstest(coins, "uniform").pvalue > 0.001
    others = [coin(stream_key(7, 0, position, Purpose.RECOVERY)) for position in range(2000)]
    assert abs(np.corrcoef(coins, others)[0, 1]) < 0.08


@pytest.mark.parametrize("purpose", [Purpose.RECOVERY, Purpose.DRAFT], ids=["own-noise", "the-drafts-noise"])
def test_a_recovery_needs_noise_of_its_own(purpose: Purpose, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lost the draft's race narrowly would win too often, were the recovery run with the same noise."""
    monkeypatch.setattr(judging, "Purpose", SimpleNamespace(COIN=Purpose.COIN, RECOVERY=purpose))
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), Sparse((0, 1, 2, 3), (0.8, 0.19, 0.005, 0.005))
    logits = torch.from_numpy(np.log(p)).float().repeat(2, 1)
    drawn: Counter[int] = Counter()
    for seed in range(2000):
        draws = [Draw(replace(PLAIN, seed=seed), 0, PROMPT, [])] * 2
        token_ids = draw_sparse(q, draws[0].key(Purpose.DRAFT))
        drawn[judged_block(SAMPLER, Draft(token_ids, distributions=(q,)), logits, draws).token_ids[0]] += 1
    observed = [drawn[token_id] for token_id in range(4)]
    assert (stats.chisquare(observed, p * 2000).pvalue > 0.001) == (purpose is Purpose.RECOVERY)


def test_logprobs_are_the_models_own_and_one_per_token() -> None:
    sampling = replace(PLAIN, logprobs=2)
    block = judged(sampling, [], drafted_chain(sampling, [], 3, TARGET))
    assert [entry.token_id for entry in block.logprobs] == list(block.token_ids)
    first = torch.from_numpy(TARGET[PROMPT[-2], PROMPT[-1]]).log_softmax(0)[block.token_ids[0]]
    assert block.logprobs[0].logprob == pytest.approx(float(first), abs=1e-5)
    assert len(block.logprobs[0].top) == 2


def test_rows_that_allow_nothing_matter_only_where_they_are_reached() -> None:
    draft = drafted_chain(PLAIN, [], 2, TARGET)
    draws = [Draw(PLAIN, 0, PROMPT, [*draft.token_ids[:row]]) for row in range(3)]
    logits = rows(TARGET, [*PROMPT, *draft.token_ids], 3)
    for row in range(3):
        broken = logits.clone()
        broken[row] = torch.nan
        assert judged_block(SAMPLER, draft, broken, draws).unusable is Unusable.MODEL
    impossible = Draft(((draft.token_ids[0] + 1) % VOCABULARY,), distributions=(Sparse.certain(draft.token_ids[0]),))
    broken = logits[:2].clone()
    broken[1] = torch.nan
    assert judged_block(SAMPLER, impossible, broken, draws[:2]).unusable is None
