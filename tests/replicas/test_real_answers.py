"""The shipped model: in float32 speculation changes no token of hundreds of answers, in bfloat16 none that matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from deploy.bench.prompts import load_prompts
from fleet.clock import SystemClock
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.features import FeatureReader, Seen
from replicas.engine.footprint import Keeping
from replicas.engine.loop import Engine
from replicas.engine.model import DecoderModel, Segment, load_model
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import SpeculationPolicy, Speculator
from replicas.engine.step import StepRunner
from replicas.heads.loading import read_head
from replicas.heads.warming import ReadingProposer
from replicas.model_store import resolve_model
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Proposer
from replicas.target_model import TargetModel, load_target
from tests.replicas.engine.rig import OWNER, Result
from tests.replicas.memory_draft import MemoryDraft

pytestmark = pytest.mark.model

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


def quiet(line: str) -> None:
    """Progress that nobody reads."""


def sampler_of(target: TargetModel) -> Sampler:
    return Sampler(target.vocab_size, target.tokenizer.eos_token_ids)


@dataclass
class Answers:
    """By request, and how many drafted tokens were accepted."""

    results: dict[str, Result]
    accepted: int


def answer(
    target: TargetModel,
    requests: list[GenerationRequest],
    proposer: Proposer | None,
    reader: FeatureReader | None = None,
) -> Answers:
    clock = SystemClock()
    policy = SpeculationPolicy(3, is_adaptive=False, must_answer=False)
    engine = Engine(
        target.model,
        target.tokenizer,
        ENGINE,
        runner=StepRunner(target.model, sampler_of(target)),
        speculator=Speculator(proposer, policy, target.vocab_size, clock, reader) if proposer else None,
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


def shipped_draft(target: TargetModel, dtype: str) -> MemoryDraft:
    lender = resolve_model(ModelConfig(), quiet)
    folder = resolve_model(ModelConfig(model=f"{DEFAULT_MODEL}-draft"), quiet)
    model = load_model(folder, dtype=dtype, device="cpu", kv_tokens=4096, lender=lender)
    return MemoryDraft(model, sampler_of(target), vocab_size=target.tokenizer.vocab_size)


class ShippedHeads:
    """A `TargetHead` for all of them: one target that shows what any of them reads."""

    def __init__(self) -> None:
        self._heads = {
            method: read_head(
                SpeculativeConfig.model_validate(
                    {"method": method, "model": f"{DEFAULT_MODEL}-{method}", "tree": tree}
                ),
                quiet,
            )
            for method, tree in TREES.items()
        }

    def taps(self, layers: int) -> tuple[int, ...]:
        return tuple(sorted({tap for head in self._heads.values() for tap in head.taps(layers)}))

    def bytes_needed(self, kv_tokens: int, keeping: Keeping) -> int:
        return sum(head.bytes_needed(kv_tokens, keeping) for head in self._heads.values())

    def on(self, target: TargetModel) -> Iterator[tuple[str, ReadingProposer, FeatureReader]]:
        """Each with its name and a reader that shows it its own states."""
        layers = target.model.config.num_hidden_layers
        for method, head in self._heads.items():
            proposer, _ = head.on(target.model, target.name, sampler_of(target), SystemClock())
            places = [self.taps(layers).index(tap) for tap in head.taps(layers)]
            yield method, proposer, OwnStates(proposer, len(self.taps(layers)), places)


@dataclass(frozen=True)
class OwnStates:
    """A `FeatureReader` that passes on a part of the states that lie side by side."""

    reader: FeatureReader
    states: int
    places: list[int]

    def read(self, seen: Sequence[Seen]) -> None:
        self.reader.read([replace(chunk, features=self._own(chunk.features)) for chunk in seen])

    def _own(self, features: torch.Tensor) -> torch.Tensor:
        return features.unflatten(1, (self.states, -1))[:, self.places].flatten(1)


def test_two_hundred_prompts_get_the_same_tokens_with_look_up_and_some_with_what_is_shipped() -> None:
    heads = ShippedHeads()
    target = load_target(ModelConfig(dtype="float32"), ENGINE, quiet, heads)
    requests = ask(target, PROMPTS, ANSWER_TOKENS)
    few = requests[:HEADED_PROMPTS]
    baseline = answer(target, requests, None)
    speculative = {
        "ngram": answer(target, requests, NgramProposer(2, 4)),
        "draft_model": answer(target, requests[:DRAFTED_PROMPTS], shipped_draft(target, "float32")),
        **{method: answer(target, few, head, reader) for method, head, reader in heads.on(target)},
    }
    expected = {name: result.answer() for name, result in baseline.results.items()}
    assert len(speculative["ngram"].results) == PROMPTS
    for proposer, answers in speculative.items():
        assert answers.accepted > 0, proposer
        for name, result in answers.results.items():
            assert result.answer() == expected[name], (proposer, name)


@torch.inference_mode()
def gaps(model: DecoderModel, prompt: tuple[int, ...], tokens: list[int]) -> torch.Tensor:
    """How far below the best logit each token of a greedy answer is, the answer being given to the model: [n]."""
    segment = Segment(0, 0, (*prompt, *tokens[:-1]), len(tokens))
    logits = model.forward([segment]).logits
    return logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def greedily(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    plain = {"temperature": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
    return [replace(each, sampling=replace(each.sampling, **plain)) for each in requests]


def require_near_ties(target: TargetModel, requests: list[GenerationRequest], answers: Answers, what: str) -> None:
    """Every token is the model's choice or as good as it."""
    assert answers.accepted > 0, what
    for each in requests:
        tokens = answers.results[each.request_id].token_ids
        assert gaps(target.model, each.prompt_token_ids, tokens).max() <= NEAR_TIE, (what, each.request_id)


def test_in_bfloat16_every_token_is_the_models_choice_or_within_a_near_tie_of_it() -> None:
    heads = ShippedHeads()
    target = load_target(ModelConfig(dtype="bfloat16"), ENGINE, quiet, heads)
    greedy = greedily(ask(target, 24, 16))
    few = greedy[:HEADED_PROMPTS]
    looked_up = answer(target, greedy, NgramProposer(2, 4))
    require_near_ties(target, greedy, looked_up, "ngram")
    require_near_ties(target, few, answer(target, few, shipped_draft(target, "bfloat16")), "draft_model")
    for method, head, reader in heads.on(target):
        require_near_ties(target, few, answer(target, few, head, reader), method)
    # The measure can fail: a token of another answer is far off.
    tokens = looked_up.results["0"].token_ids
    others = looked_up.results["2"].token_ids
    assert gaps(target.model, greedy[0].prompt_token_ids, [*tokens[:8], *others[8:]]).max() > NEAR_TIE
