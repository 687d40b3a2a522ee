"""step(): schedule, forward, accept, emit. One thread; no socket, and no queue but the scheduler's own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from fleet.clock import Clock
from fleet.config import EngineConfig
from fleet.errors import OutOfMemory
from fleet.generation import FailureKind, FinishReason, GenerationRequest, Round, StepOutput, StreamFailed, TokenChunk
from fleet.tokenizer import Tokenizer
from replicas.engine.adjustments import adjusting_fields
from replicas.engine.block import Block
from replicas.engine.intake import Capacity, refusal, token_limit
from replicas.engine.kv_extents import KvExtents
from replicas.engine.model import Model
from replicas.engine.sampling import Unusable
from replicas.engine.scheduler import Plan, Scheduler
from replicas.engine.sequence import Sequence
from replicas.engine.speculator import Passed, Settled, Speculator
from replicas.engine.step import StepResult, StepRunner, WorkResult
from replicas.engine.text import Emission, OutputText
from replicas.speculation.messages import FINISHED

Outputs = dict[Hashable, list[StepOutput]]
"""What one step has for each owner, in order."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state after a step; the counters, from preemptions on, only grow."""

    running: int = 0
    waiting: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    preemptions: int = 0
    output_tokens: int = 0
    out_of_memory: int = 0
    running_limit: int = 0
    """Sequences that can run at once."""
    decoding_steps: int = 0
    """Steps without a prompt in them, but for those that paused to be recorded."""
    decoding_seconds: float = 0.0
    """Of those steps, without the waiting for proposals."""
    accepting_seconds: float = 0.0
    """The part of them after the forward pass: sampling and accepting; 0 on an accelerator, where that is not known."""


class Engine:
    """All sequences of one model. Called from one thread only; nothing it does for one sequence harms another."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: EngineConfig,
        *,
        runner: StepRunner,
        speculator: Speculator | None,
        clock: Clock,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_waiting = config.max_waiting
        self._runner = runner
        self._speculator = speculator
        self._clock = clock
        vocab_size = min(model.vocab_size, tokenizer.vocab_size)
        self._capacity = Capacity(vocab_size, model.max_model_len, model.kv_tokens)
        self._extents = KvExtents(model.kv_tokens)
        self._scheduler = Scheduler(
            self._extents, max_sequences=config.max_num_seqs, max_tokens=config.max_num_batched_tokens
        )
        self._sequences: dict[tuple[Hashable, str], Sequence] = {}
        self._next_id = 0
        self._outputs: Outputs = {}
        self.stats = EngineStats(kv_total_tokens=model.kv_tokens, running_limit=config.max_num_seqs)
        """Replaced after every step, so that other threads may read it."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do or deliver anything."""
        return bool(self._sequences or self._outputs)

    def submit(self, request: GenerationRequest, owner: Hashable, *, is_probe: bool = False) -> None:
        """Queue a request; where that is impossible, the next step's outputs say why."""
        failure = self._refusal(request, owner, is_probe)
        if failure is not None:
            self._emit(owner, failure)
            return
        sequence = self._new_sequence(request, owner, is_probe)
        owed = sequence.text.resume(request.resume) if request.resume else Emission("", 0)
        if owed.finish is not None:
            self._emit(owner, TokenChunk(request.request_id, (), owed.text, (), owed.finish, owed.stop_reason))
            return
        sequence.owed_text = owed.text
        self._sequences[owner, request.request_id] = sequence
        self._scheduler.add(sequence)
        self._note_load()

    def cancel(self, owner: Hashable, request_ids: Iterable[str]) -> None:
        """Drop sequences and all they hold, at once and without a word; unknown ids are ignored."""
        found = (self._sequences.get((owner, request_id)) for request_id in request_ids)
        self._drop([sequence for sequence in found if sequence is not None], "cancelled")

    def cancel_owner(self, owner: Hashable) -> None:
        """Drop everything of an owner that is gone, undelivered outputs included."""
        self._drop([sequence for sequence in self._sequences.values() if sequence.owner == owner], "cancelled")
        self._outputs.pop(owner, None)

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """Give up every sequence; the next step's outputs say so."""
        self._fail(list(self._sequences.values()), kind, message)

    def step(self) -> Outputs:
        """One pass over everything that can run; the outputs since the last step, by owner."""
        running = self._scheduler.running
        drafts, late = self._speculator.propose(running) if self._speculator else ({}, frozenset[int]())
        plan = self._scheduler.schedule(drafts)
        self._note_plan(plan)
        if plan.works:
            started = self._clock.monotonic()
            try:
                result = self._runner.run(plan, self._clock)
            except OutOfMemory as error:
                self.stats = replace(self.stats, out_of_memory=self.stats.out_of_memory + 1)
                self._fail([work.sequence for work in plan.works], FailureKind.OUT_OF_MEMORY, str(error))
            else:
                self._note_step(plan, result, started)
                self._commit(plan, result.works, late)
        self._note_load()
        outputs, self._outputs = self._outputs, {}
        return outputs

    def _refusal(self, request: GenerationRequest, owner: Hashable, is_probe: bool) -> StreamFailed | None:
        reason = refusal(request, self._capacity)
        if (owner, request.request_id) in self._sequences:
            reason = "this request id is in use"
        if reason is not None:
            return StreamFailed(request.request_id, FailureKind.BAD_REQUEST, reason)
        if len(self._scheduler.waiting) >= self._max_waiting and not is_probe:
            return StreamFailed(request.request_id, FailureKind.OVERLOADED, "the engine's queue is full")
        return None

    def _new_sequence(self, request: GenerationRequest, owner: Hashable, is_probe: bool) -> Sequence:
        self._next_id += 1
        resumed = request.resume.token_ids if request.resume else ()
        return Sequence(
            id=self._next_id,
            request=request,
            owner=owner,
            text=OutputText(self._tokenizer, request.sampling, request.prompt_token_ids, self._capacity.max_model_len),
            arrived_at=self._clock.monotonic(),
            token_limit=token_limit(request, self._capacity),
            token_ids=[*request.prompt_token_ids, *resumed],
            is_probe=is_probe,
        )

    def _commit(self, plan: Plan, results: Items[WorkResult], late: frozenset[int]) -> None:
        """Take over what the step brought, emit it, and keep the proposer in step."""
        ended: list[Sequence] = []
        passed: list[Passed] = []
        settled: list[Settled] = []
        opened: list[Sequence] = []
        for work, result in zip(plan.works, results, strict=True):
            sequence, block = work.sequence, result.block
            sequence.prompt_logprobs.extend(result.prompt_logprobs)
            position, base_length = sequence.cached, len(sequence.token_ids)
            if not work.samples:
                sequence.cached += work.new_tokens
                passed.append(Passed(sequence, position, result.features))
                continue
            round_ = Round(len(work.drafted), len(block.path), sequence.id in late) if sequence.is_open else None
            if self._commit_block(sequence, block, round_):
                ended.append(sequence)
                continue
            passed.append(Passed(sequence, position, result.features))
            if round_ is not None:
                settled.append(Settled(sequence, base_length, block.token_ids, round_, work.drafted.depth))
            else:
                opened.append(sequence)
        self._drop(ended, FINISHED)
        if self._speculator is not None:
            self._speculator.read(passed)
            self._speculator.settle(settled, opened, self._scheduler.draft_room)

    def _commit_block(self, sequence: Sequence, block: Block, round_: Round | None) -> bool:
        """Append and emit what the step committed for one sequence; True when that ends it."""
        if block.unusable is not None:
            self._emit(sequence.owner, _no_token(sequence.request, block.unusable))
            return True
        if not block.token_ids:  # max_tokens is 0: only the prompt was asked about
            emission = Emission("", 0, FinishReason.LENGTH)
        else:
            emission = sequence.text.feed(block.token_ids)
            sequence.token_ids.extend(block.token_ids[: emission.kept])
            sequence.cached = len(sequence.token_ids) - 1
        self._emit_chunk(sequence, emission, block, round_)
        return emission.finish is not None

    def _emit_chunk(self, sequence: Sequence, emission: Emission, block: Block, round_: Round | None) -> None:
        is_first = not sequence.has_emitted
        chunk = TokenChunk(
            sequence.request.request_id,
            block.token_ids[: emission.kept],
            sequence.owed_text + emission.text,
            block.logprobs[: emission.kept],
            emission.finish,
            emission.stop_reason,
            round_,
            sequence.queue_seconds if is_first else None,
            (None, *sequence.prompt_logprobs) if is_first and sequence.request.sampling.prompt_logprobs else (),
        )
        sequence.has_emitted, sequence.owed_text = True, ""
        if not sequence.is_probe:
            self.stats = replace(self.stats, output_tokens=self.stats.output_tokens + len(chunk.token_ids))
        self._emit(sequence.owner, chunk)

    def _emit(self, owner: Hashable, output: StepOutput) -> None:
        self._outputs.setdefault(owner, []).append(output)

    def _fail(self, sequences: Items[Sequence], kind: FailureKind, message: str) -> None:
        for sequence in sequences:
            self._emit(sequence.owner, StreamFailed(sequence.request.request_id, kind, message))
        self._drop(sequences, kind.value)

    def _drop(self, sequences: Items[Sequence], reason: str) -> None:
        """Free everything that sequences hold, here and at the proposer."""
        for sequence in sequences:
            del self._sequences[sequence.owner, sequence.request.request_id]
            self._scheduler.remove(sequence)
        if self._speculator is not None:
            self._speculator.close(sequences, reason)
        self._note_load()

    def _note_plan(self, plan: Plan) -> None:
        now = self._clock.monotonic()
        for work in plan.works:
            if work.sequence.queue_seconds is None:
                work.sequence.queue_seconds = now - work.sequence.arrived_at
        for sequence in plan.preempted:
            sequence.prompt_logprobs.clear()
        if plan.preempted and self._speculator is not None:
            self._speculator.close(plan.preempted, "preempted")
        self.stats = replace(self.stats, preemptions=self.stats.preemptions + len(plan.preempted))

    def _note_step(self, plan: Plan, result: StepResult, started: float) -> None:
        ended = self._clock.monotonic()
        is_decoding = all(work.samples and work.new_tokens == 1 for work in plan.works)
        if not is_decoding or result.was_recorded:
            return
        stats, seconds = self.stats, ended - started
        accepting = 0.0 if result.forwarded_at is None else ended - result.forwarded_at
        self.stats = replace(
            stats,
            decoding_steps=stats.decoding_steps + 1,
            decoding_seconds=stats.decoding_seconds + seconds,
            accepting_seconds=stats.accepting_seconds + accepting,
        )
        if self._speculator is not None:
            self._speculator.observe_decoding(sum(len(work.drafted) for work in plan.works), seconds)

    def _note_load(self) -> None:
        self.stats = replace(
            self.stats,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_used_tokens=self._extents.used_tokens,
        )


def _no_token(request: GenerationRequest, reason: Unusable) -> StreamFailed:
    """The failure of a request that no token can follow: its own where its fields did that, else the replica's."""
    if reason is Unusable.MODEL:
        return StreamFailed(request.request_id, FailureKind.INTERNAL, reason)
    fields = ", ".join(adjusting_fields(request.sampling))
    return StreamFailed(request.request_id, FailureKind.BAD_REQUEST, f"{fields}: {reason}")
