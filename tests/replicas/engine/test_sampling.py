"""The sampler against its dumb twin, rule by rule, and on logits that are not a distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.generation import SamplingParams
from replicas.engine.sampling import Draw, Sampler, Unusable, UnusableLogits
from tests.replicas.engine import reference

EOS = frozenset({2})
PLAIN = SamplingParams(seed=11, max_tokens=100)
GREEDY = replace(PLAIN, temperature=0.0)

samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**63),
    max_tokens=st.just(100),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.95, 0.6, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logit_bias=st.sampled_from([(), ((0, 4.0), (3, -100.0)), ((10_000, 5.0),)]),
    min_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.sampled_from([(), (1,)]),
)


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    """Logits of several sizes and shapes: peaked, flat, and with many equal ones."""
    size = draw(st.sampled_from([5, 64, 65, 300]))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = random.normal(scale=draw(st.sampled_from([0.1, 2.0, 8.0])), size=size)
    if draw(st.booleans()):
        logits = np.round(logits)
    return torch.tensor(logits, dtype=torch.float32)


def draw_of(sampling: SamplingParams, output: list[int] | None = None, choice_index: int = 0) -> Draw:
    return Draw(sampling, choice_index, prompt_token_ids=(0, 3, 3), output_token_ids=output or [])


def one(logits: torch.Tensor, draw: Draw) -> int:
    return Sampler(len(logits), EOS).sample(logits[None], [draw])[0].token_id


def twin_probabilities(logits: torch.Tensor, draw: Draw) -> list[float]:
    adjusted = reference.adjusted(logits.tolist(), draw.sampling, draw.prompt_token_ids, draw.output_token_ids, EOS)
    return reference.probabilities(adjusted, draw.sampling)


def twin(logits: torch.Tensor, draw: Draw) -> int:
    p = twin_probabilities(logits, draw)
    position = len(draw.output_token_ids)
    times = [
        reference.exponential(draw.sampling.seed, draw.choice_index, position, token_id) / p[token_id]
        if p[token_id] > 0
        else math.inf
        for token_id in range(len(logits))
    ]
    return times.index(min(times))


@settings(max_examples=200)
@given(rows(), samplings, st.lists(st.integers(0, 4), max_size=5))
def test_it_draws_what_the_dumb_twin_draws(logits: torch.Tensor, sampling: SamplingParams, output: list[int]) -> None:
    draw = draw_of(sampling, output)
    assert one(logits, draw) == twin(logits, draw)


@given(rows(), samplings, st.lists(st.integers(0, 4), max_size=5))
def test_it_states_the_distribution_that_it_draws_from(
    logits: torch.Tensor, sampling: SamplingParams, output: list[int]
) -> None:
    draw = draw_of(sampling, output)
    stated = Sampler(len(logits), EOS).probabilities(logits, draw)
    assert stated.dtype == torch.float64
    assert stated.tolist() == pytest.approx(twin_probabilities(logits, draw), abs=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 4.0])
def test_passing_over_blocks_never_passes_over_the_winner(scale: float, temperature: float) -> None:
    random = np.random.default_rng(3)
    sampling = replace(PLAIN, temperature=temperature)
    for seed in range(20):
        logits = torch.tensor(random.normal(scale=scale, size=5000), dtype=torch.float32)
        draw = draw_of(replace(sampling, seed=seed))
        unlimited = draw_of(replace(sampling, seed=seed, top_k=len(logits)))
        assert one(logits, draw) == one(logits, unlimited)


@given(st.lists(st.tuples(rows(), samplings), min_size=1, max_size=4))
def test_a_row_does_not_depend_on_its_batch(batch: list[tuple[torch.Tensor, SamplingParams]]) -> None:
    width = max(len(logits) for logits, _ in batch)
    padded = torch.stack([torch.nn.functional.pad(logits, (0, width - len(logits)), value=-9.0) for logits, _ in batch])
    draws = [draw_of(sampling, [4, 1]) for _, sampling in batch]
    sampler = Sampler(width, EOS)
    together = [sample.token_id for sample in sampler.sample(padded, draws)]
    alone = [sampler.sample(padded[i : i + 1], [draws[i]])[0].token_id for i in range(len(draws))]
    assert together == alone


def test_seed_choice_and_position_each_change_the_draw() -> None:
    logits = torch.zeros(5000)
    base = draw_of(PLAIN, [1, 2])
    others = [
        draw_of(replace(PLAIN, seed=12), [1, 2]),
        draw_of(PLAIN, [1, 2], choice_index=1),
        draw_of(PLAIN, [1, 2, 3]),
    ]
    assert one(logits, base) == one(logits, draw_of(PLAIN, [7, 8]))
    assert one(logits, base) not in [one(logits, other) for other in others]


def test_padding_of_the_models_output_is_never_drawn() -> None:
    logits = torch.full((1, 8), 0.0)
    logits[0, 5:] = 50.0
    sampler = Sampler(5, EOS)
    assert sampler.sample(logits, [draw_of(GREEDY)])[0].token_id == 0
    assert all(sampler.sample(logits, [draw_of(replace(PLAIN, seed=seed))])[0].token_id < 5 for seed in range(50))
    assert sampler.probabilities(logits[0], draw_of(PLAIN)).shape == (5,)


def test_among_equal_logits_greedy_takes_the_lowest_id() -> None:
    assert one(torch.tensor([0.0, 3.0, 3.0, 1.0]), draw_of(GREEDY)) == 1


def test_penalties_see_the_drafted_tokens_before_the_row() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.0]]).repeat(2, 1)
    sampling = replace(GREEDY, frequency_penalty=1.0)
    draws = [Draw(sampling, 0, (), []), Draw(sampling, 0, (), [0])]
    assert [sample.token_id for sample in Sampler(3, EOS).sample(logits, draws)] == [0, 1]


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    logits = torch.tensor([2.0, 1.9])
    prompt = (0,)
    for sampling, token_id in [
        (replace(GREEDY, repetition_penalty=1.5), 1),
        (replace(GREEDY, presence_penalty=1.5), 0),
        (replace(GREEDY, frequency_penalty=1.5), 0),
    ]:
        assert one(logits, Draw(sampling, 0, prompt, [])) == token_id


def test_bias_comes_before_penalties() -> None:
    """4 + 2 = 6, and 6 / 2 = 3 is below 3.5; in the other order 4 / 2 + 2 = 4 would win."""
    sampling = replace(GREEDY, logit_bias=((0, 2.0),), repetition_penalty=2.0)
    assert one(torch.tensor([4.0, 3.5]), Draw(sampling, 0, (0,), [])) == 1


def test_ends_are_forbidden_until_min_tokens() -> None:
    logits = torch.tensor([0.0, 8.0, 9.0, 1.0])
    sampling = replace(GREEDY, min_tokens=2, stop_token_ids=(1,))
    assert [one(logits, Draw(sampling, 0, (), output)) for output in ([], [3], [3, 3])] == [3, 3, 2]


def test_log_probabilities_are_the_models_own() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    sampling = replace(GREEDY, logit_bias=((3, 100.0),), logprobs=2)
    sample = Sampler(4, EOS).sample(logits, [draw_of(sampling)])[0]
    expected = logits[0].log_softmax(0)
    assert sample.token_id == 3
    assert sample.logprob is not None
    assert sample.logprob.token_id == 3
    assert sample.logprob.logprob == pytest.approx(float(expected[3]))
    assert [token_id for token_id, _ in sample.logprob.top] == [1, 2]
    assert [value for _, value in sample.logprob.top] == pytest.approx([float(expected[1]), float(expected[2])])


def test_each_row_reports_as_many_alternatives_as_it_asked_for() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    draws = [draw_of(replace(GREEDY, logprobs=count)) for count in (None, 0, 3, 20)]
    logprobs = [sample.logprob for sample in Sampler(6, EOS).sample(logits, draws)]
    assert [logprob and len(logprob.top) for logprob in logprobs] == [None, 0, 3, 6]


def test_padding_has_no_share_in_log_probabilities() -> None:
    logits = torch.tensor([[0.0, 0.0, 60.0]])
    entry = Sampler(2, EOS).logprobs(logits, [1], top=5)[0]
    assert entry.logprob == pytest.approx(math.log(0.5))
    assert len(entry.top) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, replace(GREEDY, logit_bias=((0, 1.0),))])
def test_a_row_that_is_no_distribution_is_named_and_harms_no_other(bad: float, sampling: SamplingParams) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    sampler = Sampler(5, EOS)
    draws = [draw_of(sampling)] * 3
    with pytest.raises(UnusableLogits) as caught:
        sampler.sample(logits, draws)
    assert caught.value.reasons == {1: Unusable.MODEL}
    assert len(sampler.sample(logits[[0, 2]], draws[:2])) == 2


def test_a_request_that_forbids_every_token_is_no_distribution_either() -> None:
    sampling = replace(GREEDY, min_tokens=1, stop_token_ids=(0, 1))
    with pytest.raises(UnusableLogits) as caught:
        one(torch.zeros(3), draw_of(sampling))
    assert caught.value.reasons == {0: Unusable.REQUEST}


@given(
    logits=st.lists(st.sampled_from([-3e38, -1.0, 0.0, 5.0, 3e36, 3e38]), min_size=3, max_size=3),
    bias=st.sampled_from([-100.0, 0.0, 100.0]),
    penalty=st.sampled_from([0.01, 1.0, 10.0]),
    temperature=st.sampled_from([0.0, 1.0]),
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_what_a_request_does_to_finite_logits_is_never_the_models_fault(
    logits: list[float], bias: float, penalty: float, temperature: float
) -> None:
    sampling = SamplingParams(
        seed=1, max_tokens=1, temperature=temperature, logit_bias=((0, bias),), repetition_penalty=penalty
    )
    found = Sampler(3, EOS).candidates(torch.tensor([logits]), [draw_of(sampling)], [1])[0]
    if not found:
        with pytest.raises(UnusableLogits) as caught:
            one(torch.tensor(logits), draw_of(sampling))
        assert caught.value.reasons == {0: Unusable.REQUEST}
    else:
        assert one(torch.tensor(logits), draw_of(sampling)) == found[0]


def test_nothing_to_sample_gives_nothing() -> None:
    assert Sampler(5, EOS).sample(torch.zeros(0, 5), []) == []
