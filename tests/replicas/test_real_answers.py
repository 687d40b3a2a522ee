"""The shipped model: in float32 speculation changes no token of hundreds of answers, in bfloat16 none that matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from deploy.bench.prompts import load_prompts
from fleet.clock import SystemClock
from fleet.config import EngineConfig, ModelConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.loop import Engine
from replicas.engine.model import DecoderModel, Segment, load_model
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import SpeculationPolicy, Speculator
from replicas.engine.step import StepRunner
from replicas.model_store import resolve_model
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Proposer
from replicas.target_model import TargetModel, load_target
from tests.replicas.engine.rig import OWNER, Result
from tests.replicas.memory_draft import MemoryDraft

pytestmark = pytest.mark.model

ENGINE = EngineConfig(kv_cache_tokens=4096, max_num_seqs=16, device="cpu")
PROMPTS = 200
DRAFTED_PROMPTS = 40
"""For a second model; tests/replicas/test_every_proposer.py asks every proposer hundreds, of a small target."""
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


@dataclass
class Answers:
    """By request, and how many drafted tokens were accepted."""

    results: dict[str, Result]
    accepted: int


def answer(target: TargetModel, requests: list[GenerationRequest], proposer: Proposer | None) -> Answers:
    clock = SystemClock()
    policy = SpeculationPolicy(3, is_adaptive=False, must_answer=False)
    engine = Engine(
        target.model,
        target.tokenizer,
        ENGINE,
        runner=StepRunner(target.model, Sampler(target.vocab_size, target.tokenizer.eos_token_ids)),
        speculator=Speculator(proposer, policy, target.vocab_size, clock) if proposer else None,
        clock=clock,
    )
    results = {each.request_id: Result() for each in requests}
    for each in requests:
        engine.submit(each, OWNER)
    while engine.has_work:
        for output in engine.step().get(OWNER, []):
            results[output.request_id].add(output)
    rounds = [chunk.round for result in results.values() for chunk in result.chunks if chunk.round]
    return Answers(results, sum(round_.accepted for round_ in rounds))


@pytest.fixture(scope="module", autouse=True)
def all_threads() -> Iterator[None]:
    """This is the one part of the tests in which arithmetic is the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def layers_draft(target: TargetModel, layers: int) -> MemoryDraft:
    folder = resolve_model(ModelConfig(), lambda line: None)
    model = load_model(folder, dtype="float32", device="cpu", kv_tokens=4096, layers=layers)
    return MemoryDraft(
        model, Sampler(target.vocab_size, target.tokenizer.eos_token_ids), vocab_size=target.tokenizer.vocab_size
    )


def test_two_hundred_prompts_get_the_same_tokens_with_look_up_and_some_with_a_draft() -> None:
    target = load_target(ModelConfig(dtype="float32"), ENGINE, lambda line: None)
    requests = ask(target, PROMPTS, ANSWER_TOKENS)
    baseline = answer(target, requests, None)
    looked_up = answer(target, requests, NgramProposer(2, 4))
    drafted = answer(target, requests[:DRAFTED_PROMPTS], layers_draft(target, 2))
    expected = {name: result.answer() for name, result in baseline.results.items()}
    assert looked_up.accepted > 0
    assert {name: result.answer() for name, result in looked_up.results.items()} == expected
    assert drafted.results
    assert all(result.answer() == expected[name] for name, result in drafted.results.items())


@torch.inference_mode()
def gaps(model: DecoderModel, prompt: tuple[int, ...], tokens: list[int]) -> torch.Tensor:
    """How far below the best logit each token of a greedy answer is, the answer being given to the model: [n]."""
    segment = Segment(0, 0, (*prompt, *tokens[:-1]), len(tokens))
    logits = model.forward([segment]).logits
    return logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def test_in_bfloat16_every_token_is_the_models_choice_or_within_a_near_tie_of_it() -> None:
    target = load_target(ModelConfig(dtype="bfloat16"), ENGINE, lambda line: None)
    greedy = [
        replace(each, sampling=replace(each.sampling, temperature=0.0, repetition_penalty=1.0, frequency_penalty=0.0))
        for each in ask(target, 24, 16)
    ]
    speculative = answer(target, greedy, NgramProposer(2, 4))
    assert speculative.accepted > 0
    for each in greedy:
        tokens = speculative.results[each.request_id].token_ids
        assert gaps(target.model, each.prompt_token_ids, tokens).max() <= NEAR_TIE, each.request_id
    # The measure can fail: a token of another answer is far off.
    tokens = speculative.results["0"].token_ids
    others = speculative.results["2"].token_ids
    assert gaps(target.model, greedy[0].prompt_token_ids, [*tokens[:8], *others[8:]]).max() > NEAR_TIE
