"""What does a loaded path hold? Bytes from its allocator, places in its caches, sequences that it takes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil
import torch

from deploy.bench.allocated import allocated_bytes
from fleet.clock import SystemClock
from fleet.config import HEAD_METHODS, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.generation import GenerationRequest, SamplingParams, TokenChunk
from fleet.tokenizer import Tokenizer
from replicas.draft_engine import DraftEngine
from replicas.engine.decoder_config import load_config, shares_embedding
from replicas.engine.loop import Engine
from replicas.engine.model import DecoderModel, Forward, load_model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import SpeculationPolicy, Speculator
from replicas.engine.step import StepRunner
from replicas.heads.eagle_proposer import EagleProposer
from replicas.heads.loading import read_head
from replicas.heads.warming import ReadingProposer
from replicas.model_store import resolve_model
from replicas.proposing import look_up
from replicas.speculation.drafting import DraftWork
from replicas.speculation.proposer import Proposer

ANSWER_TOKENS = 16
STEP_TOKENS = 65_536
"""All prompts are read in one step, so that none has ended when the last one begins."""
ANY_TOKEN = 3
OWNER = "bench"


@dataclass(frozen=True, slots=True)
class Asked:
    """A path, and how much room its caches get."""

    model: str
    dtype: str
    proposer: SpeculativeConfig | None
    tokens: int
    """Of the target's cache and of the proposer's."""
    context: int
    """Tokens of each sequence, prompt and answer."""


@dataclass(frozen=True, slots=True)
class Held:
    """What there was. Weights and caches in bytes."""

    weights: int
    cache: int
    proposer_weights: int
    proposer_cache: int
    sequences: int
    """That run before one waits or loses its place."""
    drafting: int
    """Of them those that were drafted for in one step."""


class Unanswering:
    """A loaded model's room without its arithmetic: every token is the first of the vocabulary, every state zero."""

    def __init__(self, model: DecoderModel, states: int) -> None:
        self.vocab_size, self.max_model_len, self.kv_tokens = model.vocab_size, model.max_model_len, model.kv_tokens
        self._width = states * model.config.hidden_size
        self._dtype = model.embedding.dtype

    def forward(self, segments: Sequence[Segment]) -> Forward:
        rows, tokens = sum(each.logit_rows for each in segments), sum(len(each.token_ids) for each in segments)
        features = torch.zeros(tokens, self._width, dtype=self._dtype) if self._width else None
        return Forward(torch.zeros(rows, self.vocab_size), features)

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing is cached."""

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Nothing is cached."""


def quiet(line: str) -> None:
    """Progress that nobody reads."""


def look(asked: Asked, in_between: Callable[[], None] = lambda: None) -> Held:
    """Load the path in this process, as its workers do, and see; `in_between` is called once all is loaded."""
    if asked.proposer is not None and asked.proposer.method == "draft_model":
        return _beside_a_draft(asked, asked.proposer, in_between)
    folder = resolve_model(ModelConfig(model=asked.model), quiet)
    tokenizer, layers = Tokenizer.load(folder), load_config(folder).num_hidden_layers
    published = read_head(asked.proposer, quiet) if asked.proposer and asked.proposer.method in HEAD_METHODS else None
    taps = published.taps(layers) if published else ()
    before = allocated_bytes()
    model = load_model(folder, dtype=asked.dtype, device="cpu", kv_tokens=asked.tokens, taps=taps)
    loaded = allocated_bytes()
    proposer: Proposer | None = look_up(asked.proposer) if asked.proposer and not published else None
    reader: ReadingProposer | None = None
    if published is not None:
        proposer = reader = published.on(model, asked.model, _sampler(model, tokenizer), SystemClock())[0]
    taken = allocated_bytes() - loaded
    in_between()
    cache = reader.cache_bytes if isinstance(reader, EagleProposer) else 0
    speculator = None
    if proposer is not None and asked.proposer is not None:
        policy = SpeculationPolicy(asked.proposer.num_speculative_tokens, is_adaptive=False, must_answer=False)
        speculator = Speculator(proposer, policy, model.vocab_size, SystemClock(), reader)
    sequences, drafting = _admitted(asked, Unanswering(model, len(taps)), tokenizer, speculator)
    weights = loaded - before - model.cache_bytes
    return Held(weights, model.cache_bytes, taken - cache if published else 0, cache, sequences, drafting)


def look_and_weigh(asked: Asked) -> tuple[Held, int]:
    """The same, and the bytes of this process that were resident then."""
    resident: list[int] = []
    return look(asked, lambda: resident.append(psutil.Process().memory_info().rss)), resident[0]


def _beside_a_draft(asked: Asked, config: SpeculativeConfig, in_between: Callable[[], None]) -> Held:
    """The draft worker's own process; what the target's holds is what it holds alone."""
    chosen = ModelConfig(model=config.model or asked.model)
    folder, target = resolve_model(chosen, quiet), resolve_model(ModelConfig(model=asked.model), quiet)
    lender = target if shares_embedding(folder) else None
    tokenizer = Tokenizer.load(lender or folder)
    before = allocated_bytes()
    model = load_model(folder, dtype=asked.dtype, device="cpu", kv_tokens=asked.tokens, lender=lender)
    taken = allocated_bytes() - before
    in_between()
    drafting = _drafting(asked, Unanswering(model, 0), _sampler(model, tokenizer))
    return Held(0, 0, taken - model.cache_bytes, model.cache_bytes, 0, drafting)


def _sampler(model: DecoderModel, tokenizer: Tokenizer) -> Sampler:
    return Sampler(min(model.vocab_size, tokenizer.vocab_size), tokenizer.eos_token_ids)


def _admitted(asked: Asked, model: Unanswering, tokenizer: Tokenizer, speculator: Speculator | None) -> tuple[int, int]:
    """Ask for more sequences than can fit: how many ran at once, and for how many of them there was a draft."""
    wanted = asked.tokens // asked.context + 2
    config = EngineConfig(
        kv_cache_tokens=asked.tokens, max_num_seqs=wanted, max_num_batched_tokens=STEP_TOKENS, max_waiting=wanted
    )
    runner = StepRunner(model, Sampler(min(model.vocab_size, tokenizer.vocab_size), tokenizer.eos_token_ids))
    engine = Engine(model, tokenizer, config, runner=runner, speculator=speculator, clock=SystemClock())
    sampling = SamplingParams(seed=0, max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    prompt = (ANY_TOKEN,) * (asked.context - ANSWER_TOKENS)
    for number in range(wanted):
        engine.submit(GenerationRequest(str(number), prompt, sampling), OWNER)
    running = drafting = 0
    while engine.has_work and not engine.stats.preemptions:
        chunks = [each for each in engine.step().get(OWNER, []) if isinstance(each, TokenChunk)]
        if any(chunk.finish is not None for chunk in chunks):
            break
        running = max(running, engine.stats.running)
        drafting = max(drafting, sum(chunk.round is not None and chunk.round.drafted > 0 for chunk in chunks))
    return running, drafting


def _drafting(asked: Asked, model: Unanswering, sampler: Sampler) -> int:
    """How many sequences a draft model's cache holds before one is refused."""
    engine, prompt = DraftEngine(model, sampler), (ANY_TOKEN,) * asked.context
    sampling = SamplingParams(seed=0, max_tokens=1, temperature=0.0)
    work = DraftWork(0, 0, prompt, False, False, False, sampling, 0, prompt, ())
    held = 0
    while not engine.run([replace(work, sequence_id=held)]).refused:
        held += 1
    return held
