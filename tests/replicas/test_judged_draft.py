"""The rejection rule with a draft on the other side of the wire: the target's distribution, honest or not."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine import judging
from replicas.engine.sampling import Sampler
from replicas.speculation import rejection
from replicas.speculation.messages import Proposal
from replicas.speculation.rejection import MOST_TOKENS, Sparse
from tests.fake_model import FakeModel
from tests.replicas.engine import reference
from tests.replicas.engine.requests import mixed_requests, request
from tests.replicas.engine.rig import Rig, fake_twin
from tests.replicas.engine.test_coupling import ADJUSTED, DRAFT, PLAIN, TARGET, TRUNCATED
from tests.replicas.engine.test_coupling import VOCABULARY as FEW
from tests.replicas.memory_draft import Lie, MemoryDraft

EOS = frozenset({2})
PROMPT = (0, 1)
LENGTH = 4
FEW_ANSWERS, MANY_ANSWERS = 400, 800


class TableModel(FakeModel):
    """Logits by the last two tokens that are seen, from a table [V, V, V]."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__(vocab_size=FEW, kv_tokens=4096)
        self._table = torch.from_numpy(table)

    def logits_after(self, context: Sequence[int | None]) -> Tensor:
        return self._table[context[-2], context[-1]]


def sampled(sampling: SamplingParams, count: int, *, draft_ahead: bool = False) -> Counter[tuple[int, ...]]:
    """The last tokens of so many answers, each with a seed of its own; the first is never drafted."""
    draft = drafting(TableModel(DRAFT), draft_ahead=draft_ahead)
    rig = Rig(TableModel(TARGET), proposer=draft, max_num_seqs=64, max_waiting=count)
    wanted = replace(sampling, max_tokens=LENGTH, ignore_eos=True)
    requests = [GenerationRequest(str(seed), PROMPT, replace(wanted, seed=seed)) for seed in range(count)]
    results = rig.run(*requests, max_steps=10_000)
    assert draft.counters.wrong == 0
    assert draft.proposed > count
    return Counter(tuple(result.token_ids[1:]) for result in results.values())


def exact(sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every ending, multiplied out by the dumb twin."""
    result: dict[tuple[int, ...], float] = dict.fromkeys(itertools.product(range(FEW), repeat=LENGTH - 1), 0.0)
    for output in itertools.product(range(FEW), repeat=LENGTH):
        probability = 1.0
        for index, token_id in enumerate(output):
            before = list(output[:index])
            context = [*PROMPT, *before]
            logits = reference.adjusted(TARGET[context[-2], context[-1]].tolist(), sampling, PROMPT, before, EOS)
            probability *= reference.probabilities(logits, sampling)[token_id]
        result[output[1:]] += probability
    return result


def surprise(counts: Counter[tuple[int, ...]], sampling: SamplingParams) -> float:
    """The chance of counts at least as far from the target's distribution: chi-square, rare endings in one cell."""
    probabilities, total = exact(sampling), counts.total()
    if any(probabilities[output] == 0 for output in counts):
        return 0.0
    cells = [output for output, probability in probabilities.items() if probability * total >= 5]
    observed = [counts[output] for output in cells]
    expected = [probabilities[output] * total for output in cells]
    rest = max(total - sum(expected), 1e-9)
    return float(stats.chisquare([*observed, total - sum(observed)], [*expected, rest]).pvalue)


@pytest.mark.parametrize(
    ("sampling", "draft_ahead"),
    [(PLAIN, False), (TRUNCATED, False), pytest.param(ADJUSTED, True, marks=pytest.mark.slow)],
    ids=["plain", "truncated", "adjusted-ahead"],
)
def test_answers_follow_the_targets_distribution(sampling: SamplingParams, draft_ahead: bool) -> None:
    assert surprise(sampled(sampling, FEW_ANSWERS, draft_ahead=draft_ahead), sampling) > 0.001


def test_a_draft_cut_to_one_token_changes_only_how_often_it_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.engine.sampling.DRAFT_TOKENS", 1)
    assert surprise(sampled(PLAIN, FEW_ANSWERS), PLAIN) > 0.001


_residual = rejection.residual

MISTAKES = {
    "recovers from p": (rejection, "residual", lambda p, q: p),
    "recovers from q - p": (rejection, "residual", lambda p, q: _residual(_dense(q, len(p)), _sparse(p))),
    "accepts too much": (rejection, "is_accepted", lambda token, p, q, coin: coin * q.of(token) < 1.2 * p[token]),
    "accepts on the mode": (rejection, "is_accepted", lambda token, p, q, coin: token == p.argmax()),
    "tosses no coin": (judging, "coin", lambda key, index: 0.5),
}


def _dense(q: Sparse, size: int) -> np.ndarray:
    dense = np.zeros(size)
    dense[list(q.token_ids)] = q.probabilities
    return dense


def _sparse(p: np.ndarray) -> Sparse:
    return Sparse(tuple(range(len(p))), tuple(p.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_rule_that_is_subtly_wrong_is_found_out(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    assert surprise(sampled(PLAIN, MANY_ANSWERS), PLAIN) < 0.001


def change_first(proposal: Proposal, **fields: object) -> Proposal:
    first, *rest = proposal.distributions
    return replace(proposal, distributions=(replace(first, **fields), *rest))  # type: ignore[arg-type]


def _with_weight(weight: float) -> Lie:
    def lie(proposal: Proposal) -> Proposal:
        q = proposal.distributions[0]
        return change_first(proposal, weights=(weight, *q.weights[1:]))

    return lie


def _without_drafted(proposal: Proposal) -> Proposal:
    q = proposal.distributions[0]
    others = tuple(token if token != proposal.token_ids[0] else (token + 1) % 40 for token in q.token_ids)
    return change_first(proposal, token_ids=(*dict.fromkeys(others),), weights=(1 / len({*others}),) * len({*others}))


def _another_token(proposal: Proposal) -> Proposal:
    q = proposal.distributions[0]
    other = next(token for token in q.token_ids if token != proposal.token_ids[0])
    return replace(proposal, token_ids=(other, *proposal.token_ids[1:]))


def _flattened(proposal: Proposal) -> Proposal:
    """Drawn from q, and called drawn evenly from the same tokens; one of several draws gives it away."""
    flat = tuple(
        Sparse(q.token_ids, tuple(np.full(len(q.token_ids), 1 / len(q.token_ids), dtype=np.float32).tolist()))
        for q in proposal.distributions
    )
    return replace(proposal, distributions=flat)


LIES: dict[str, Lie] = {
    "not a number": _with_weight(math.nan),
    "negative": _with_weight(-0.25),
    "infinite": _with_weight(math.inf),
    "not normalised": lambda p: change_first(p, weights=tuple(2 * weight for weight in p.distributions[0].weights)),
    "zero": _with_weight(0.0),
    "without the drafted token": _without_drafted,
    "not drawn from it": _another_token,
    "drawn from something else": _flattened,
    "a token twice": lambda p: change_first(p, token_ids=(p.token_ids[0],) * len(p.distributions[0].token_ids)),
    "no token": lambda p: change_first(p, token_ids=(FakeModel().vocab_size, *p.distributions[0].token_ids[1:])),
    "empty": lambda p: change_first(p, token_ids=(), weights=()),
    "too wide": lambda p: change_first(
        p, token_ids=tuple(range(MOST_TOKENS + 1)), weights=(1 / (MOST_TOKENS + 1),) * (MOST_TOKENS + 1)
    ),
    "none at all": lambda p: replace(p, distributions=()),
}


def drafting(model: FakeModel, *, draft_ahead: bool = False, lie: Lie | None = None) -> MemoryDraft:
    sampler = Sampler(model.vocab_size, EOS)
    return MemoryDraft(model, sampler, is_judged=True, draft_ahead=draft_ahead, vocab_size=model.vocab_size, lie=lie)


@pytest.mark.parametrize("lie", LIES)
def test_a_draft_that_lies_about_what_it_drew_from_is_shut_out_and_the_answer_is_the_targets_own(lie: str) -> None:
    requests = [request(name, replace(PLAIN, seed=5, max_tokens=8, ignore_eos=True)) for name in "ab"]
    draft = drafting(FakeModel(), lie=lambda item: LIES[lie](item) if item.token_ids else item)
    rig = Rig(proposer=draft)
    rig.run(*requests)
    assert draft.counters.wrong == len(requests)
    assert draft.proposed == 0
    for each in requests:
        assert rig.results[each.request_id].answer() == fake_twin(each).answer()


@pytest.mark.parametrize("draft_ahead", [False, True], ids=["in-turns", "ahead"])
def test_an_honest_draft_is_never_accused_and_a_perfect_one_always_accepted(draft_ahead: bool) -> None:
    long = [request(f"long-{n}", replace(PLAIN, seed=n, max_tokens=50, ignore_eos=True)) for n in range(4)]
    requests = [*long, *(each for each in mixed_requests() if each.sampling.max_tokens <= 20)]
    draft = drafting(FakeModel(), draft_ahead=draft_ahead)
    rig = Rig(FakeModel(kv_tokens=130), proposer=draft, max_num_batched_tokens=24)
    rig.run(*requests)
    assert rig.engine.stats.preemptions > 0
    assert draft.counters.wrong == 0
    rounds = [chunk.round for result in rig.results.values() for chunk in result.chunks if chunk.round]
    # In turns only what a step had no room to verify can be ready.
    assert (draft.ready > len(rounds) / 10) == draft_ahead
    assert sum(round_.drafted for round_ in rounds) == sum(round_.accepted for round_ in rounds) > 50
    for each in requests:
        mine = rig.results[each.request_id]
        if each.sampling.is_greedy:
            assert mine.answer() == fake_twin(each).answer()
        assert [entry.token_id for entry in mine.logprobs] == (mine.token_ids if each.sampling.logprobs else [])
