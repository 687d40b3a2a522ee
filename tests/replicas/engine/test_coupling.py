"""Coupled acceptance with real draws on a small vocabulary: the target's distribution, whichever proposer ran."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fleet.generation import SamplingParams
from replicas.engine.noise import stream_key
from replicas.engine.race import race
from replicas.engine.sampling import Draw, Sampler
from replicas.speculation.acceptance import accept
from replicas.speculation.tree import Draft
from tests.replicas.engine import reference

VOCABULARY = 4
EOS = frozenset({3})
PROMPT = (0, 1)
LENGTH = 3
SEEDS = range(1000)

TARGET = np.random.default_rng(1).normal(scale=1.5, size=(VOCABULARY, VOCABULARY, VOCABULARY)).astype(np.float32)
DRAFT = TARGET + np.random.default_rng(2).normal(scale=0.7, size=TARGET.shape).astype(np.float32)

PLAIN = SamplingParams(seed=0, max_tokens=LENGTH)
TRUNCATED = replace(PLAIN, temperature=0.8, top_k=3, top_p=0.9, min_p=0.02)
ADJUSTED = replace(
    PLAIN,
    temperature=1.2,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.4,
    logit_bias=((1, 0.5),),
    min_tokens=2,
)

Propose = Callable[[SamplingParams, list[int], int], list[int]]
SAMPLER = Sampler(VOCABULARY, EOS)


def rows(model: np.ndarray, context: list[int], count: int) -> torch.Tensor:
    """Logits after the last `count` prefixes of the context; the model sees two tokens."""
    ends = range(len(context) - count + 1, len(context) + 1)
    return torch.from_numpy(np.stack([model[context[end - 2], context[end - 1]] for end in ends]))


def draft_with(model: np.ndarray, how: SamplingParams | None = None) -> Propose:
    """A draft model that draws with the request's noise, or in another way."""

    def propose(sampling: SamplingParams, output: list[int], count: int) -> list[int]:
        drafted: list[int] = []
        for _ in range(count):
            draw = Draw(how or sampling, 0, PROMPT, output + drafted)
            drafted.append(SAMPLER.sample(rows(model, [*PROMPT, *output, *drafted], 1), [draw])[0].token_id)
        return drafted

    return propose


PROPOSERS: dict[str, Propose] = {
    "none": lambda sampling, output, count: [],
    "coupled": draft_with(DRAFT),
    "greedy": draft_with(DRAFT, replace(PLAIN, temperature=0.0)),
    "perfect": draft_with(TARGET),
    "uncoupled": draft_with(DRAFT, replace(PLAIN, seed=987)),
    "useless": lambda sampling, output, count: [(7 * len(output) + 3) % VOCABULARY] * count,
}


def generate(sampling: SamplingParams, propose: Propose) -> tuple[tuple[int, ...], int, int]:
    """One output of LENGTH tokens, and how many of how many drafted ones were accepted."""
    output: list[int] = []
    drafted_count = accepted_count = 0
    while len(output) < LENGTH:
        drafted = propose(sampling, output, 2)
        draws = [Draw(sampling, 0, PROMPT, output + drafted[:index]) for index in range(len(drafted) + 1)]
        logits = rows(TARGET, [*PROMPT, *output, *drafted], len(draws))
        acceptance = accept(Draft(tuple(drafted)), [sample.token_id for sample in SAMPLER.sample(logits, draws)])
        output += acceptance.committed
        drafted_count += len(drafted)
        accepted_count += acceptance.accepted
    return tuple(output[:LENGTH]), drafted_count, accepted_count


def alone(sampling: SamplingParams) -> list[tuple[int, ...]]:
    """Of every seed what `generate` gives without a draft, all of them row by row in one batch."""
    outputs: list[list[int]] = [[] for _ in SEEDS]
    for _ in range(LENGTH):
        draws = [
            Draw(replace(sampling, seed=seed), 0, PROMPT, output) for seed, output in zip(SEEDS, outputs, strict=True)
        ]
        logits = torch.cat([rows(TARGET, [*PROMPT, *output], 1) for output in outputs])
        for output, sample in zip(outputs, SAMPLER.sample(logits, draws), strict=True):
            output.append(sample.token_id)
    return [tuple(output) for output in outputs]


def exact(sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every output, multiplied out by the dumb twin."""
    result = {}
    for output in itertools.product(range(VOCABULARY), repeat=LENGTH):
        probability = 1.0
        for index, token_id in enumerate(output):
            before = list(output[:index])
            context = [*PROMPT, *before]
            logits = reference.adjusted(TARGET[context[-2], context[-1]].tolist(), sampling, PROMPT, before, EOS)
            probability *= reference.probabilities(logits, sampling)[token_id]
        result[output] = probability
    return result


@pytest.mark.parametrize(
    "proposed", [SEEDS[:40], pytest.param(SEEDS[:100], marks=pytest.mark.slow)], ids=["few", "more"]
)
@pytest.mark.parametrize("sampling", [PLAIN, TRUNCATED, ADJUSTED], ids=["plain", "truncated", "adjusted"])
def test_outputs_follow_the_targets_distribution_and_no_proposer_changes_one(
    sampling: SamplingParams, proposed: range
) -> None:
    outputs = alone(sampling)
    for seed in proposed:
        seeded = replace(sampling, seed=seed)
        assert {name: generate(seeded, PROPOSERS[name])[0] for name in PROPOSERS} == dict.fromkeys(
            PROPOSERS, outputs[seed]
        )
    expected = exact(sampling)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert fits(Counter(outputs), expected, len(outputs))


def fits(counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float], total: int) -> bool:
    """Chi-square over the outputs that are expected five times or more, and all others together."""
    assert all(probabilities[output] > 0 for output in counts)
    cells = [output for output, probability in probabilities.items() if probability * total >= 5]
    observed = [counts[output] for output in cells]
    expected = [probabilities[output] * total for output in cells]
    rest = max(total - sum(expected), 1e-9)
    return bool(stats.chisquare([*observed, total - sum(observed)], [*expected, rest]).pvalue > 0.001)


def test_greedy_outputs_are_the_targets_whichever_proposer_ran() -> None:
    greedy = replace(PLAIN, temperature=0.0)
    outputs = {name: generate(greedy, propose)[0] for name, propose in PROPOSERS.items()}
    assert {output: p for output, p in exact(greedy).items() if p} == {outputs["none"]: 1.0}
    assert set(outputs.values()) == {outputs["none"]}


def test_a_perfect_draft_is_always_accepted_and_the_shared_noise_helps_any_other() -> None:
    accepted = {}
    for name in ("perfect", "coupled", "uncoupled"):
        counts = [generate(replace(PLAIN, seed=seed), PROPOSERS[name])[1:] for seed in range(100)]
        accepted[name] = sum(a for _, a in counts) / sum(d for d, _ in counts)
    assert accepted["perfect"] == 1.0
    assert accepted["coupled"] > accepted["uncoupled"] + 0.1


@pytest.mark.parametrize("case", [0, 2])
def test_agreement_is_as_likely_as_theory_says(case: int) -> None:
    """Pr[agree] = Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i), which is at least (1 - TV) / (1 + TV)."""
    random = np.random.default_rng(case)
    size, draws = 6, 2000
    target = random.normal(scale=1.5, size=size).astype(np.float32)
    draft = target + random.normal(scale=0.3 * (case + 1), size=size).astype(np.float32)
    p, q = (np.array(reference.softmax(logits.tolist(), 1.0)) for logits in (target, draft))
    exactly = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(size))
    distance = np.abs(p - q).sum() / 2
    keys = [stream_key(case, 0, position) for position in range(draws)]
    agreed = sum(race(target, PLAIN, key) == race(draft, PLAIN, key) for key in keys)
    assert stats.binomtest(agreed, draws, exactly).pvalue > 0.001
    assert exactly >= (1 - distance) / (1 + distance)
    assert math.isclose(p.sum(), 1.0)
