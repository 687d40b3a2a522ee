"""How many tokens to draft next, so that speculation never costs more than it brings.

A drafted token counts only if all before it do, so k tokens at acceptance α bring α + α² + … + α^k beyond the token
that every step brings: E[tokens] = (1 - α^(k+1)) / (1 - α) in all (Leviathan, Kalman, Matias: "Fast Inference from
Transformers via Speculative Decoding", 2023, equation 1). A step costs target(rows) + draft(depth) seconds, where
every sequence adds k + 1 rows and the depth is the largest k. The lengths maximise tokens per second of the batch.
A tree is k levels deep instead: it counts by levels, α is the chance that a level holds the target's token, and each
level adds as many rows as it has nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.generation import Round
from replicas.speculation.step_costs import DraftCosts, Line, LineFit

PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 4.0
SEQUENCE_MEMORY_TRIALS = 24.0
POOL_MEMORY_TRIALS = 128.0
PROBE_EVERY_STEPS = 64
PROBE_STEPS = 2
"""A probe's first round also catches up on what was not drafted for; the second one tells what a round costs."""
LARGEST_ITERATIONS = 16


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence of the next step: its acceptance, and the most tokens that may be drafted for it."""

    acceptance: float
    cap: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the target by rows, and of drafting by depth with waiting and wire included."""

    target: Line
    draft: Line
    level_rows: tuple[int, ...] = ()
    """Rows that each level of a draft adds; 1 where none is named, as in a chain."""

    def rows(self, level: int) -> int:
        """Rows of the `level`th level, counted from 1."""
        return self.level_rows[level - 1] if level <= len(self.level_rows) else 1

    def draft_rows(self, length: int) -> int:
        return sum(self.rows(level) for level in range(1, length + 1))


@dataclass(frozen=True, slots=True)
class Choice:
    """Draft lengths, one per candidate, with the tokens they are expected to bring and the seconds they cost."""

    lengths: tuple[int, ...]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else float("inf")


def choose_lengths(candidates: Sequence[Candidate], costs: Costs) -> Choice:
    """The lengths with the highest expected tokens per second; the shortest of equal ones.

    Dinkelbach's iteration ("On Nonlinear Fractional Programming", 1967): at a rate λ known to be reachable, the
    choice with the largest tokens - λ · seconds has a higher rate, until none has.
    """
    best = _choice(candidates, costs, depth=0, rate=0.0)
    for _ in range(LARGEST_ITERATIONS):
        rate = best.rate
        depths = range(1 + max((candidate.cap for candidate in candidates), default=0))
        options = [_choice(candidates, costs, depth, rate) for depth in depths]
        better = max(options, key=lambda option: option.tokens - rate * option.seconds)
        if better.rate <= rate:
            break
        best = better
    return best


def worthwhile(candidate: Candidate, costs: Costs, depth: int, rate: float) -> int:
    """The length up to `depth` that brings most if a second is worth `rate` tokens; the shortest of equal ones."""
    row_price = rate * costs.target.slope
    best, surplus, highest, gain = 0, 0.0, 0.0, 1.0
    for length in range(1, min(depth, candidate.cap) + 1):
        gain *= candidate.acceptance
        surplus += gain - row_price * costs.rows(length)
        if surplus > highest:
            best, highest = length, surplus
    return best


class DraftLengths:
    """Chooses lengths step by step from what it is told: rounds, seconds, and who takes part. Draws no randomness."""

    def __init__(self, level_rows: tuple[int, ...] = ()) -> None:
        self._level_rows = level_rows
        self._target = LineFit()
        self._draft = DraftCosts()
        self._pool = AcceptanceEstimate()
        self._sequences: dict[int, AcceptanceEstimate] = {}
        self._undrafted_steps: dict[int, int] = {}
        self._quiet_steps = 0
        self._batch = 0
        """Sequences of the last choice."""
        self._is_catching_up = False
        """Whether the last choice resumed drafts after steps without."""
        self._last: tuple[Costs, int, float] | None = None
        """Costs, depth and rate of the last choice."""

    def observe_target(self, rows: int, seconds: float) -> None:
        """A step of the target that only decoded, over so many rows."""
        self._target.observe(rows, seconds)

    def observe_draft(self, depth: int, seconds: float) -> None:
        """The time the engine waited for proposals of up to `depth` tokens, whether they came or not.

        It says nothing where the proposer had first to read what was generated without it.
        """
        if not self._is_catching_up:
            self._draft.observe(self._batch, depth, seconds)

    def observe_round(self, sequence_id: int, round_: Round) -> None:
        known = self._sequences.get(sequence_id, self._newcomer())
        self._sequences[sequence_id] = known.after(round_, SEQUENCE_MEMORY_TRIALS)
        self._pool = self._pool.after(round_, POOL_MEMORY_TRIALS)

    def first(self, cap: int) -> int:
        """The length for a sequence that joins before the next choice."""
        if self._last is None:
            return cap
        return worthwhile(Candidate(self._pool.rate, cap), *self._last)

    def choose(self, caps: Mapping[int, int]) -> dict[int, int]:
        """Lengths for the next step by sequence id, each at most its cap.

        As long as a cost is unknown they are the caps: something must be measured. Where nothing was drafted for
        `PROBE_EVERY_STEPS`, one token is tried `PROBE_STEPS` times, so that a proposer that got better is noticed.
        """
        self._batch = len(caps)
        costs = self._costs()
        if costs is None:
            return self._noted(dict(caps))
        candidates = [
            Candidate(self._sequences.get(sequence_id, self._newcomer()).rate, cap) for sequence_id, cap in caps.items()
        ]
        choice = choose_lengths(candidates, costs)
        self._last = (costs, max(choice.lengths, default=0), choice.rate)
        return self._noted(self._with_probes(dict(zip(caps, choice.lengths, strict=True)), caps))

    def forget(self, sequence_ids: Iterable[int]) -> None:
        for sequence_id in sequence_ids:
            self._sequences.pop(sequence_id, None)
            self._undrafted_steps.pop(sequence_id, None)

    def _with_probes(self, lengths: dict[int, int], caps: Mapping[int, int]) -> dict[int, int]:
        is_quiet = not any(lengths.values())
        self._quiet_steps = self._quiet_steps + 1 if is_quiet else 0
        probe_all = self._quiet_steps >= PROBE_EVERY_STEPS
        for sequence_id, length in lengths.items():
            undrafted = self._undrafted_steps.get(sequence_id, 0) + (length == 0)
            # Beside others that draft, a probe costs a row; where none does, all share the one that costs a round.
            if probe_all or (not is_quiet and undrafted >= PROBE_EVERY_STEPS):
                lengths[sequence_id] = min(max(1, length), caps[sequence_id])
        if self._quiet_steps >= PROBE_EVERY_STEPS + PROBE_STEPS - 1:
            self._quiet_steps = 0
        return lengths

    def _noted(self, lengths: dict[int, int]) -> dict[int, int]:
        """Keep count of the steps that each sequence was not drafted for."""
        before = self._undrafted_steps
        self._is_catching_up = any(length and before.get(sequence_id) for sequence_id, length in lengths.items())
        self._undrafted_steps = {
            sequence_id: 0 if length else before.get(sequence_id, 0) + 1 for sequence_id, length in lengths.items()
        }
        return lengths

    def _costs(self) -> Costs | None:
        target, draft = self._target.line(), self._draft.line(self._batch)
        return Costs(target, draft, self._level_rows) if target is not None and draft is not None else None

    def _newcomer(self) -> AcceptanceEstimate:
        return AcceptanceEstimate(self._pool.rate, PRIOR_TRIALS)


def _choice(candidates: Sequence[Candidate], costs: Costs, depth: int, rate: float) -> Choice:
    """The best lengths up to `depth` if a second is worth `rate` tokens."""
    lengths = tuple(worthwhile(candidate, costs, depth, rate) for candidate in candidates)
    gained = sum(_gain(candidate.acceptance, k) for candidate, k in zip(candidates, lengths, strict=True))
    rows = len(candidates) + sum(costs.draft_rows(length) for length in lengths)
    return Choice(
        lengths,
        tokens=len(candidates) + gained,
        seconds=costs.target.at(rows) + costs.draft.at(max(lengths, default=0)),
    )


def _gain(acceptance: float, length: int) -> float:
    """Expected accepted tokens: α + α² + … + α^length."""
    if acceptance == 1.0:
        return float(length)
    return acceptance * (1 - acceptance**length) / (1 - acceptance)
