"""An engine on a fake model, proposers of every character, and a dumb twin that runs one request at a time."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fleet.config import EngineConfig
from fleet.generation import FinishReason, GenerationRequest, StreamFailed, TokenChunk, TokenLogprob
from fleet.tokenizer import Tokenizer
from replicas.engine.features import FeatureReader
from replicas.engine.loop import Engine
from replicas.engine.model import Model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sampler
from replicas.engine.speculator import SpeculationPolicy, Speculator
from replicas.engine.step import StepFault, StepRunner
from replicas.engine.text import OutputText
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Proposer, ProposerHealth, ProposerState, Want
from replicas.speculation.tree import ROOT
from tests.fake_model import FakeModel
from tests.fakes import ManualClock
from tests.tiny import VOCABULARY, tiny_tokenizer_folder

OWNER = "router"
MAX_DRAFT = 4


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.load(tiny_tokenizer_folder(Path(folder)))


@dataclass
class Result:
    """Everything a client gets for one request."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    failure: StreamFailed | None = None
    chunks: list[TokenChunk] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.finish is not None or self.failure is not None

    def add(self, output: TokenChunk | StreamFailed) -> None:
        assert not self.has_ended, "output after the end"
        if isinstance(output, StreamFailed):
            self.failure = output
            return
        self.chunks.append(output)
        self.token_ids.extend(output.token_ids)
        self.text += output.text
        self.logprobs.extend(output.logprobs)
        self.prompt_logprobs.extend(output.prompt_logprobs)
        self.finish, self.stop_reason = output.finish, output.stop_reason

    def answer(self) -> tuple[object, ...]:
        """What must not depend on batching, speculation or preemption."""
        return (self.token_ids, self.text, self.finish, self.stop_reason)


class Rig:
    """An engine that is stepped by hand."""

    def __init__(
        self,
        model: Model | None = None,
        *,
        proposer: Proposer | None = None,
        reader: FeatureReader | None = None,
        must_answer: bool = True,
        is_adaptive: bool = False,
        fault: StepFault | None = None,
        **engine: int,
    ) -> None:
        self.model = model or FakeModel()
        self.tokenizer = tiny_tokenizer()
        vocab_size = min(self.model.vocab_size, VOCABULARY)
        self.clock = ManualClock()
        policy = SpeculationPolicy(MAX_DRAFT, is_adaptive=is_adaptive, must_answer=must_answer)
        speculator = Speculator(proposer, policy, vocab_size, self.clock, reader) if proposer else None
        self.engine = Engine(
            self.model,
            self.tokenizer,
            EngineConfig(**engine),
            runner=StepRunner(self.model, Sampler(vocab_size, self.tokenizer.eos_token_ids), fault),
            speculator=speculator,
            clock=self.clock,
        )
        self.results: dict[str, Result] = {}

    def submit(self, *requests: GenerationRequest) -> None:
        for request in requests:
            self.results[request.request_id] = Result()
            self.engine.submit(request, OWNER)

    def step(self) -> None:
        self.clock.advance(0.01)
        for output in self.engine.step().get(OWNER, []):
            self.results[output.request_id].add(output)

    def run(self, *requests: GenerationRequest, max_steps: int = 2000) -> dict[str, Result]:
        """Submit, step until idle, and check that nothing is left behind."""
        self.submit(*requests)
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine does not come to an end"
        self.assert_nothing_held()
        return self.results

    def assert_nothing_held(self) -> None:
        stats = self.engine.stats
        assert (stats.running, stats.waiting, stats.kv_used_tokens) == (0, 0, 0)


@torch.inference_mode()
def slow_twin(model: Model, request: GenerationRequest) -> Result:
    """The obvious way: one request, one token at a time, the whole context anew for each."""
    tokenizer = tiny_tokenizer()
    vocab_size = min(model.vocab_size, VOCABULARY)
    sampler = Sampler(vocab_size, tokenizer.eos_token_ids)
    text = OutputText(tokenizer, request.sampling, request.prompt_token_ids, model.max_model_len)
    result = Result()
    while result.finish is None:
        context = (*request.prompt_token_ids, *result.token_ids)
        draw = Draw(request.sampling, request.choice_index, request.prompt_token_ids, result.token_ids)
        sample = sampler.sample(model.forward([Segment(0, 0, context, 1)]).logits, [draw])[0]
        result.token_ids.append(sample.token_id)
        emission = text.feed([sample.token_id])
        result.text += emission.text
        result.finish, result.stop_reason = emission.finish, emission.stop_reason
        result.logprobs += [sample.logprob] if sample.logprob else []
    return result


Twin = Callable[[GenerationRequest], Result]


@functools.cache
def fake_twin(request: GenerationRequest) -> Result:
    """What any `FakeModel` of the usual size must answer."""
    return slow_twin(FakeModel(), request)


class ScriptedProposer:
    """A proposer whose guesses come from `guess`; checks on the way that it is told the truth."""

    def __init__(self) -> None:
        self.open_ids: dict[int, tuple[int, list[int]]] = {}
        self.prompts: dict[int, Opening] = {}
        self.rounds = 0

    def open(self, opening: Opening) -> None:
        known = self.prompts.get(opening.sequence_id)
        assert known is None or known.epoch < opening.epoch
        self.prompts[opening.sequence_id] = opening
        self.open_ids[opening.sequence_id] = (opening.epoch, list(opening.token_ids))

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        self.rounds += 1
        for want in wants:
            epoch, token_ids = self.open_ids[want.sequence_id]
            assert (epoch, len(token_ids)) == (want.epoch, want.base_length)
            assert want.max_tokens >= 1
        return {want.sequence_id: proposal for want in wants if (proposal := self.guess(want)) is not None}

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        for verdict in verdicts:
            epoch, token_ids = self.open_ids[verdict.sequence_id]
            assert (epoch, len(token_ids)) == (verdict.epoch, verdict.base_length)
            assert len(verdict.committed) == verdict.accepted + 1
            token_ids.extend(verdict.committed)

    def close(self, closing: Closing) -> None:
        for sequence_id in closing.sequence_ids:
            del self.open_ids[sequence_id]

    def state(self) -> ProposerState:
        return ProposerState(ProposerHealth.HEALTHY, 0.0, 0.0)

    def guess(self, want: Want) -> Proposal | None:
        raise NotImplementedError


class KnowingProposer(ScriptedProposer):
    """Knows the answers, and errs on purpose at the given rate."""

    def __init__(self, requests: Sequence[GenerationRequest], twin: Twin, *, error_rate: float = 0.0) -> None:
        super().__init__()
        self._answers = {
            (each.prompt_token_ids, each.choice_index, each.sampling.seed): twin(each).token_ids for each in requests
        }
        self._random = random.Random(7)
        self._error_rate = error_rate

    def guess(self, want: Want) -> Proposal:
        opening = self.prompts[want.sequence_id]
        prompt = opening.token_ids[: opening.prompt_length]
        answer = self._answers[prompt, opening.choice_index, opening.sampling.seed]
        begin = want.base_length - opening.prompt_length
        tokens = [
            3 if self._random.random() < self._error_rate else token_id
            for token_id in answer[begin : begin + want.max_tokens]
        ]
        return Proposal(want.sequence_id, want.epoch, want.base_length, tuple(tokens))


class LyingProposer(ScriptedProposer):
    """Answers anything: nothing, too much, strangers, other states, other sequences."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def guess(self, want: Want) -> Proposal | None:
        tokens = tuple(self._random.randrange(40) for _ in range(self._random.randrange(9)))
        lie = self._random.randrange(7)
        if lie == 0:
            return None
        if lie == 1:
            tokens += (10**6, -1)
        epoch = want.epoch + (lie == 2)
        base_length = want.base_length - (lie == 3)
        return Proposal(want.sequence_id, epoch, base_length, tokens)


class BranchingProposer(KnowingProposer):
    """Hides the right answer, or most of it, on some branch of a random tree."""

    def guess(self, want: Want) -> Proposal:
        answer = super().guess(want).token_ids
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        right = [ROOT]
        for _ in range(self._random.randrange(1, 10)):
            parent = right[-1] if self._random.random() < 0.5 else self._random.randrange(ROOT, len(tokens))
            depth = 1 if parent == ROOT else depths[parent] + 1
            if depth > want.max_tokens:
                continue
            is_right = parent == right[-1] and depth <= len(answer) and self._random.random() < 0.7
            tokens.append(answer[depth - 1] if is_right else self._random.randrange(40))
            parents.append(parent)
            depths.append(depth)
            right += [len(tokens) - 1] if is_right else []
        return Proposal(want.sequence_id, want.epoch, want.base_length, tuple(tokens), parents=tuple(parents))
