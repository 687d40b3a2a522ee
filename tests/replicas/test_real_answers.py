"""The shipped model: in float32 speculation changes no token of hundreds of answers, in bfloat16 none that matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from deploy.bench.prompts import load_prompts
from fleet.config import EngineConfig, ModelConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.speculation.ngram import NgramProposer
from replicas.target_model import TargetModel, load_target
from tests.replicas.shipped import Answers, ShippedHeads, answer, forced_logits, gaps, quiet, shipped_draft

pytestmark = [pytest.mark.model, pytest.mark.patient]

ENGINE = EngineConfig(kv_cache_tokens=4096, max_num_seqs=16, device="cpu")
PROMPTS = 200
DRAFTED_PROMPTS = 12
"""For a second model; tests/replicas/test_every_proposer.py asks every proposer hundreds, of a small target."""
HEADED_PROMPTS = 3
TREES = {"eagle": (1, 1, 1), "eagle3": (2, 2, 1), "medusa": (3, 2, 1)}
"""By shipped head: a chain and two trees."""
PROMPT_TOKENS = 12
ANSWER_TOKENS = 6
NEAR_TIE = 0.25
"""Difference of two logits that bfloat16's 8 bits cannot be held to: they are about 20 here, so its steps are 1/8."""


def ask(target: TargetModel, count: int, answer_tokens: int) -> list[GenerationRequest]:
    """Pieces of real prompts, no two alike; every fourth is sampled, every fifth penalised."""
    text = [token for prompt in load_prompts() for turn in prompt.turns for token in target.tokenizer.encode(turn)]
    requests = []
    for number in range(count):
        sampling = SamplingParams(seed=number, max_tokens=answer_tokens, temperature=0.0, ignore_eos=True)
        if number % 4 == 1:
            sampling = replace(sampling, temperature=0.8, top_p=0.95)
        if number % 5 == 2:
            sampling = replace(sampling, repetition_penalty=1.2, frequency_penalty=0.3)
        piece = text[number * PROMPT_TOKENS : (number + 1) * PROMPT_TOKENS]
        # Half of them end as they begin, so that there is something to look up.
        prompt = (*piece, *piece[: PROMPT_TOKENS // 2]) if number % 2 else tuple(piece)
        requests.append(GenerationRequest(str(number), prompt, sampling))
    assert len({each.prompt_token_ids for each in requests}) == count
    return requests


@pytest.fixture(scope="module", autouse=True)
def all_threads() -> Iterator[None]:
    """This is the one part of the tests in which arithmetic is the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_hundred_prompts_get_the_same_tokens_with_look_up_and_some_with_what_is_shipped() -> None:
    heads = ShippedHeads(TREES)
    target = load_target(ModelConfig(dtype="float32"), ENGINE, quiet, heads)
    requests = ask(target, PROMPTS, ANSWER_TOKENS)
    few = requests[:HEADED_PROMPTS]
    baseline = answer(target, ENGINE, requests, None)
    speculative = {
        "ngram": answer(target, ENGINE, requests, NgramProposer(2, 4)),
        "draft_model": answer(target, ENGINE, requests[:DRAFTED_PROMPTS], shipped_draft(target, "float32")),
        **{method: answer(target, ENGINE, few, head, reader) for method, head, reader in heads.on(target)},
    }
    expected = {name: result.answer() for name, result in baseline.results.items()}
    assert len(speculative["ngram"].results) == PROMPTS
    for proposer, answers in speculative.items():
        assert answers.accepted > 0, proposer
        for name, result in answers.results.items():
            assert result.answer() == expected[name], (proposer, name)


def greedily(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    plain = {"temperature": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
    return [replace(each, sampling=replace(each.sampling, **plain)) for each in requests]


def require_near_ties(target: TargetModel, requests: list[GenerationRequest], answers: Answers, what: str) -> None:
    """Every token is the model's choice or as good as it."""
    assert answers.accepted > 0, what
    for each in requests:
        tokens = answers.results[each.request_id].token_ids
        logits = forced_logits(target.model, each.prompt_token_ids, tokens)
        assert gaps(logits, tokens).max() <= NEAR_TIE, (what, each.request_id)


def test_in_bfloat16_every_token_is_the_models_choice_or_within_a_near_tie_of_it() -> None:
    heads = ShippedHeads(TREES)
    target = load_target(ModelConfig(dtype="bfloat16"), ENGINE, quiet, heads)
    greedy = greedily(ask(target, 24, 16))
    few = greedy[:HEADED_PROMPTS]
    looked_up = answer(target, ENGINE, greedy, NgramProposer(2, 4))
    require_near_ties(target, greedy, looked_up, "ngram")
    require_near_ties(target, few, answer(target, ENGINE, few, shipped_draft(target, "bfloat16")), "draft_model")
    for method, head, reader in heads.on(target):
        require_near_ties(target, few, answer(target, ENGINE, few, head, reader), method)
    # The measure can fail: a token of another answer is far off.
    mixed = [*looked_up.results["0"].token_ids[:8], *looked_up.results["2"].token_ids[8:]]
    assert gaps(forced_logits(target.model, greedy[0].prompt_token_ids, mixed), mixed).max() > NEAR_TIE
