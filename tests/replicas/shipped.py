"""The shipped model and proposers for tests: one target that shows every head its states, and an engine to ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fleet.clock import SystemClock
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.generation import GenerationRequest
from replicas.engine.features import FeatureReader, Seen
from replicas.engine.footprint import Keeping, Needed
from replicas.engine.loop import Engine
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import SpeculationPolicy, Speculator
from replicas.engine.step import StepRunner
from replicas.heads.loading import read_head
from replicas.heads.warming import ReadingProposer
from replicas.model_store import resolve_model
from replicas.speculation.proposer import Proposer
from replicas.target_model import TargetModel
from tests.replicas.engine.rig import OWNER, Result
from tests.replicas.memory_draft import MemoryDraft

LONGEST_DRAFT = 3


def quiet(line: str) -> None:
    """Progress that nobody reads."""


def sampler_of(target: TargetModel) -> Sampler:
    return Sampler(target.vocab_size, target.tokenizer.eos_token_ids)


@dataclass
class Answers:
    """By request, and how many drafted tokens were accepted."""

    results: dict[str, Result]
    accepted: int
    preemptions: int


def answer(
    target: TargetModel,
    config: EngineConfig,
    requests: Sequence[GenerationRequest],
    proposer: Proposer | None,
    reader: FeatureReader | None = None,
) -> Answers:
    """Ask the first half of the requests, and the others while those are being answered."""
    clock = SystemClock()
    policy = SpeculationPolicy(LONGEST_DRAFT, is_adaptive=False, must_answer=False)
    engine = Engine(
        target.model,
        target.tokenizer,
        config,
        runner=StepRunner(target.model, sampler_of(target)),
        speculator=Speculator(proposer, policy, target.vocab_size, clock, reader) if proposer else None,
        clock=clock,
    )
    results = {each.request_id: Result() for each in requests}
    later = list(requests[len(requests) // 2 :])
    for each in requests[: len(requests) // 2]:
        engine.submit(each, OWNER)
    while engine.has_work or later:
        if later:
            engine.submit(later.pop(0), OWNER)
        for output in engine.step().get(OWNER, []):
            results[output.request_id].add(output)
    rounds = [chunk.round for result in results.values() for chunk in result.chunks if chunk.round]
    return Answers(results, sum(round_.accepted for round_ in rounds), engine.stats.preemptions)


def shipped_draft(target: TargetModel, dtype: str) -> MemoryDraft:
    lender = resolve_model(ModelConfig(), quiet)
    folder = resolve_model(ModelConfig(model=f"{DEFAULT_MODEL}-draft"), quiet)
    model = load_model(folder, dtype=dtype, device="cpu", kv_tokens=4096, lender=lender)
    return MemoryDraft(model, sampler_of(target), vocab_size=target.tokenizer.vocab_size)


class ShippedHeads:
    """A `TargetHead` for all of them: one target that shows what any of them reads."""

    def __init__(self, trees: Mapping[str, tuple[int, ...]]) -> None:
        """Trees by method, or by "method/whatever" for more than one of a head."""
        self._heads = {
            name: read_head(
                SpeculativeConfig.model_validate(
                    {"method": name.split("/")[0], "model": f"{DEFAULT_MODEL}-{name.split('/')[0]}", "tree": tree}
                ),
                quiet,
            )
            for name, tree in trees.items()
        }

    def taps(self, layers: int) -> tuple[int, ...]:
        return tuple(sorted({tap for head in self._heads.values() for tap in head.taps(layers)}))

    def needed(self, kv_tokens: int, keeping: Keeping, *, is_target_narrow: bool) -> Needed:
        each = [head.needed(kv_tokens, keeping, is_target_narrow=is_target_narrow) for head in self._heads.values()]
        return Needed(sum(one.kept for one in each), max(one.loading for one in each))

    def on(self, target: TargetModel) -> Iterator[tuple[str, ReadingProposer, FeatureReader]]:
        """Each with its name and a reader that shows it its own states."""
        layers = target.model.config.num_hidden_layers
        for name, head in self._heads.items():
            proposer, _ = head.on(target.model, target.name, sampler_of(target), SystemClock())
            places = [self.taps(layers).index(tap) for tap in head.taps(layers)]
            yield name, proposer, OwnStates(proposer, len(self.taps(layers)), places)


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


@torch.inference_mode()
def forced_logits(model: DecoderModel, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """The model's logits for each token of an answer, which is given to it whole: float32 [n, vocab]."""
    return model.forward([Segment(0, 0, (*prompt, *tokens[:-1]), len(tokens))]).logits


def gaps(logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """How far below its row's best logit each token is: [n]."""
    return logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
