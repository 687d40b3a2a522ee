"""How many tokens to draft next, so that speculation never costs more than it brings: what is learned on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.generation import Round
from replicas.speculation.best_lengths import Candidate, Costs, choose_lengths
from replicas.speculation.probes import PROBE_EVERY_STEPS, Probes
from replicas.speculation.step_costs import BatchCosts, Line

PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 4.0
SEQUENCE_MEMORY_TRIALS = 24.0
POOL_MEMORY_TRIALS = 128.0
PLAIN_EVERY_STEPS = 64
"""Steps with drafts between two without: steps of ever the same size do not tell what a row costs."""


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """Chance that the target agrees with the next drafted token, given that it agreed with all before it."""

    rate: float = PRIOR_ACCEPTANCE
    trials: float = PRIOR_TRIALS
    """How much evidence the rate stands for."""

    def after(self, round_: Round, memory_trials: float) -> AcceptanceEstimate:
        """Learn from a round; evidence older than about `memory_trials` fades.

        Every accepted token is a success, and the token that ended them a failure. A late round is one failure: it
        was paid for and brought nothing.
        """
        failed = round_.late or round_.accepted < round_.drafted
        new_trials = round_.accepted + failed
        if new_trials == 0:
            return self
        trials = self.trials + new_trials
        rate = (self.rate * self.trials + round_.accepted) / trials
        return AcceptanceEstimate(rate, min(trials, memory_trials))


SIZES = 24
"""Doublings of a batch that are told apart, more than any engine steps at once."""


@dataclass(slots=True)
class BatchSize:
    """What is kept apart for batches of 0, 1, 2, 3 to 4, 5 to 8, … sequences."""

    costs: BatchCosts = field(default_factory=BatchCosts)
    probes: Probes = field(default_factory=Probes)
    drafting_steps: int = 0
    """Since the last one without a draft."""


class DraftLengths:
    """Chooses lengths step by step from what it is told: rounds, seconds, and who takes part. Draws no randomness.

    Most of it is measured on the way. What is not, is tried on purpose: see `BatchCosts.lesson`, `Probes` and
    `PLAIN_EVERY_STEPS`.
    """

    def __init__(self, level_rows: tuple[int, ...] = ()) -> None:
        self._level_rows = level_rows
        self._pool = AcceptanceEstimate()
        self._sequences: dict[int, AcceptanceEstimate] = {}
        self._undrafted_steps: dict[int, int] = {}
        self._sizes = tuple(BatchSize() for _ in range(SIZES))
        self._turn = 0
        """Choices so far: who gives way where not all have room goes by turns."""
        self._batch = 0
        """Sequences of the last choice."""
        self._is_catching_up = False
        """Whether drafts were resumed after steps without, and nothing was heard of them yet."""

    def observe_target(self, drafted: int, seconds: float) -> None:
        """A step of the target that only decoded, with so many drafted rows in all."""
        size = self._size
        if size.probes.is_probing:
            size.probes.spend(max(0.0, seconds - size.costs.target.line().fixed))
        size.costs.observe_target(drafted / max(1, self._batch), seconds)

    def observe_draft(self, depth: int, seconds: float) -> None:
        """The time the engine waited for proposals of up to `depth` tokens, whether they came or not.

        It says nothing of the next round where the proposer had first to read what was generated without it.
        """
        size = self._size
        if size.probes.is_probing:
            size.probes.spend(seconds)
            size.probes.count_round()
        if not self._is_catching_up:
            size.costs.observe_draft(depth, seconds)
        self._is_catching_up = False

    def observe_round(self, sequence_id: int, round_: Round) -> None:
        known = self._sequences.get(sequence_id, self._newcomer())
        self._sequences[sequence_id] = known.after(round_, SEQUENCE_MEMORY_TRIALS)
        self._pool = self._pool.after(round_, POOL_MEMORY_TRIALS)

    def choose(self, caps: Mapping[int, int], max_rows: int | None = None) -> dict[int, int]:
        """Lengths for the next step by sequence id, each at most its cap; the drafts add at most `max_rows` rows.

        The first steps of every size of batch show what drafting costs there, and what doing without. Where nothing
        pays, one token is tried now and then, so that a proposer that got better is noticed; where drafting pays, a
        step goes without now and then, so that it stays known what that takes.
        """
        self._batch = len(caps)
        self._turn += 1
        lesson = self._size.costs.lesson(max(caps.values(), default=0))
        if lesson is not None:
            return self._noted({sequence_id: min(cap, lesson) for sequence_id, cap in caps.items()})
        costs = self._costs()
        numbers = _rotated(list(caps), self._turn)
        candidates = [Candidate(self._sequences.get(key, self._newcomer()).rate, caps[key]) for key in numbers]
        choice = choose_lengths(candidates, costs, max_rows)
        return self._noted(self._with_probes(dict(zip(numbers, choice.lengths, strict=True)), caps, costs))

    def forget(self, sequence_ids: Iterable[int]) -> None:
        for sequence_id in sequence_ids:
            self._sequences.pop(sequence_id, None)
            self._undrafted_steps.pop(sequence_id, None)

    def _with_probes(self, lengths: dict[int, int], caps: Mapping[int, int], costs: Costs) -> dict[int, int]:
        """Beside others that draft, a probe costs a row; where none does, all share the one that costs a round."""
        size = self._size
        if not any(lengths.values()):
            size.drafting_steps = 0
            probed = caps if size.probes.try_now(*_probe_seconds(len(caps), costs)) else ()
            return lengths | {sequence_id: min(1, caps[sequence_id]) for sequence_id in probed}
        size.probes.stop()
        size.drafting_steps += 1
        if size.drafting_steps > PLAIN_EVERY_STEPS:
            size.drafting_steps = 0
            return dict.fromkeys(lengths, 0)
        before = self._undrafted_steps
        poor = (key for key, length in lengths.items() if not length and before.get(key, 0) + 1 >= PROBE_EVERY_STEPS)
        return lengths | {sequence_id: min(1, caps[sequence_id]) for sequence_id in poor}

    def _noted(self, lengths: dict[int, int]) -> dict[int, int]:
        """Keep count of the steps that each sequence was not drafted for."""
        before = self._undrafted_steps
        self._is_catching_up |= any(length and before.get(sequence_id) for sequence_id, length in lengths.items())
        self._undrafted_steps = {
            sequence_id: 0 if length else before.get(sequence_id, 0) + 1 for sequence_id, length in lengths.items()
        }
        return lengths

    def _costs(self) -> Costs:
        known = self._size.costs
        target = known.target.line()
        return Costs(Line(target.fixed, target.slope / max(1, self._batch)), known.draft.line(), self._level_rows)

    @property
    def _size(self) -> BatchSize:
        return self._sizes[min(SIZES - 1, max(0, 2 * self._batch - 1).bit_length())]

    def _newcomer(self) -> AcceptanceEstimate:
        return AcceptanceEstimate(self._pool.rate, PRIOR_TRIALS)


def _rotated(items: list[int], turn: int) -> list[int]:
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]


def _probe_seconds(batch: int, costs: Costs) -> tuple[float, float]:
    """Of a step without a draft, and of what drafting a token for everyone adds to it."""
    plain = costs.seconds(0, 0)
    return plain, costs.seconds(batch * costs.draft_rows(1)[1], 1) - plain
