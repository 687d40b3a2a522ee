"""How many tokens to draft next, so that speculation never costs more than it brings.

A drafted token counts only if all before it do, so k tokens at acceptance α bring α + α² + … + α^k beyond the token
that every step brings: E[tokens] = (1 - α^(k+1)) / (1 - α) in all (Leviathan, Kalman, Matias: "Fast Inference from
Transformers via Speculative Decoding", 2023, equation 1). A step costs target(rows) + draft(depth) seconds, where
every sequence adds k + 1 rows and the depth is the largest k. The lengths maximise tokens per second of the batch.
A tree is k levels deep instead: it counts by levels, α is the chance that a level holds the target's token, and each
level adds as many rows as it has nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, repeat

from fleet.generation import Round
from replicas.speculation.probes import PROBE_EVERY_STEPS, Probes
from replicas.speculation.step_costs import DraftCosts, Line, LineFit

PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 4.0
SEQUENCE_MEMORY_TRIALS = 24.0
POOL_MEMORY_TRIALS = 128.0
PLAIN_EVERY_STEPS = 64
"""Steps with drafts between two without: steps of ever the same size do not tell what a row costs."""
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

    def draft_rows(self, longest: int) -> list[int]:
        """Rows of a draft by its length, from 0 to the longest."""
        levels = (*self.level_rows, *repeat(1, longest - len(self.level_rows)))
        return list(accumulate(levels[:longest], initial=0))


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


def choose_lengths(candidates: Sequence[Candidate], costs: Costs, max_rows: int | None = None) -> Choice:
    """The lengths with the highest expected tokens per second; the shortest of equal ones.

    All drafts together add at most `max_rows` rows. Among equal candidates the first give way, and a tree that grows
    wider with its depth may be given a little less than the best.

    Dinkelbach's iteration ("On Nonlinear Fractional Programming", 1967): at a rate λ known to be reachable, the
    choice with the largest tokens - λ · seconds has a higher rate, until none has.
    """
    outlook = _Outlook(candidates, costs, max_rows)
    best = outlook.choice([0] * len(candidates))
    for _ in range(LARGEST_ITERATIONS):
        rate = best.rate
        better = max(outlook.options(rate), key=lambda option: option.tokens - rate * option.seconds)
        if better.rate <= rate:
            break
        best = better
    return best


class _Outlook:
    """What every length of every candidate would bring, and the rows it would add."""

    def __init__(self, candidates: Sequence[Candidate], costs: Costs, max_rows: int | None) -> None:
        self._costs = costs
        self._max_rows = max_rows
        self._rows = costs.draft_rows(max((candidate.cap for candidate in candidates), default=0))
        self._gains = [_gains(candidate) for candidate in candidates]
        """Expected accepted tokens by length, of each candidate."""

    def options(self, rate: float) -> Iterator[Choice]:
        """For every depth the best lengths up to it, if a second is worth `rate` tokens."""
        row_price = rate * self._costs.target.slope
        best = [self._best_lengths(gains, row_price) for gains in self._gains]
        for depth in range(len(self._rows)):
            yield self.choice(self._fitted([lengths[min(depth, len(lengths) - 1)] for lengths in best]))

    def choice(self, lengths: Sequence[int]) -> Choice:
        count = len(lengths)
        gained = sum(gains[length] for gains, length in zip(self._gains, lengths, strict=True))
        rows = count + sum(self._rows[length] for length in lengths)
        seconds = self._costs.target.at(rows) + self._costs.draft.at(max(lengths, default=0))
        return Choice(tuple(lengths), count + gained, seconds)

    def _best_lengths(self, gains: Sequence[float], row_price: float) -> list[int]:
        """For every depth the length up to it that brings most."""
        best, highest = 0, 0.0
        found = []
        for length, gain in enumerate(gains):
            surplus = gain - row_price * self._rows[length]
            if surplus > highest:
                best, highest = length, surplus
            found.append(best)
        return found

    def _fitted(self, lengths: list[int]) -> list[int]:
        """Give up the levels that bring least for a row, until there is room for the rest."""
        excess = 0 if self._max_rows is None else sum(self._rows[length] for length in lengths) - self._max_rows
        if excess <= 0:
            return lengths
        last = [(self._worth(number, length), number) for number, length in enumerate(lengths) if length]
        heapify(last)
        while excess > 0 and last:
            _, number = heappop(last)
            excess -= self._rows[lengths[number]] - self._rows[lengths[number] - 1]
            lengths[number] -= 1
            if lengths[number]:
                heappush(last, (self._worth(number, lengths[number]), number))
        return lengths

    def _worth(self, number: int, length: int) -> float:
        """Tokens that each row of the last level brings."""
        gains, rows = self._gains[number], self._rows
        return (gains[length] - gains[length - 1]) / (rows[length] - rows[length - 1])


class DraftLengths:
    """Chooses lengths step by step from what it is told: rounds, seconds, and who takes part. Draws no randomness."""

    def __init__(self, level_rows: tuple[int, ...] = ()) -> None:
        self._level_rows = level_rows
        self._target = LineFit()
        self._draft = DraftCosts()
        self._pool = AcceptanceEstimate()
        self._sequences: dict[int, AcceptanceEstimate] = {}
        self._undrafted_steps: dict[int, int] = {}
        self._probes = Probes()
        self._drafting_steps = PLAIN_EVERY_STEPS
        """Since the last one without a draft; the first of these is due at once."""
        self._turn = 0
        """Choices so far: who gives way where not all have room goes by turns."""
        self._batch = 0
        """Sequences of the last choice."""
        self._is_catching_up = False
        """Whether drafts were resumed after steps without, and nothing was heard of them yet."""

    def observe_target(self, rows: int, seconds: float) -> None:
        """A step of the target that only decoded, over so many rows."""
        known = self._target.line()
        if self._probes.is_probing and known is not None:
            self._probes.spend(max(0.0, seconds - known.at(self._batch)))
        self._target.observe(rows, seconds)

    def observe_draft(self, depth: int, seconds: float) -> None:
        """The time the engine waited for proposals of up to `depth` tokens, whether they came or not.

        It says nothing of the next round where the proposer had first to read what was generated without it.
        """
        if self._probes.is_probing:
            self._probes.spend(seconds)
            self._probes.count_round()
        if not self._is_catching_up:
            self._draft.observe(self._batch, depth, seconds)
        self._is_catching_up = False

    def observe_round(self, sequence_id: int, round_: Round) -> None:
        known = self._sequences.get(sequence_id, self._newcomer())
        self._sequences[sequence_id] = known.after(round_, SEQUENCE_MEMORY_TRIALS)
        self._pool = self._pool.after(round_, POOL_MEMORY_TRIALS)

    def choose(self, caps: Mapping[int, int], max_rows: int | None = None) -> dict[int, int]:
        """Lengths for the next step by sequence id, each at most its cap; all drafts add at most `max_rows` rows.

        As long as a cost is unknown they are the caps: something must be measured. Where nothing pays, one token is
        tried now and then, so that a proposer that got better is noticed; where drafting pays, a step goes without
        now and then, so that it stays known what that takes.
        """
        self._batch = len(caps)
        self._turn += 1
        costs = self._costs()
        if costs is None:
            return self._noted(dict(caps))
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
        if not any(lengths.values()):
            self._drafting_steps = 0
            probed = caps if self._probes.try_now(*_probe_seconds(len(caps), costs)) else ()
            return lengths | {sequence_id: min(1, caps[sequence_id]) for sequence_id in probed}
        self._probes.stop()
        self._drafting_steps += 1
        if self._drafting_steps > PLAIN_EVERY_STEPS:
            self._drafting_steps = 0
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

    def _costs(self) -> Costs | None:
        target, draft = self._target.line(), self._draft.line(self._batch)
        return Costs(target, draft, self._level_rows) if target is not None and draft is not None else None

    def _newcomer(self) -> AcceptanceEstimate:
        return AcceptanceEstimate(self._pool.rate, PRIOR_TRIALS)


def _rotated(items: list[int], turn: int) -> list[int]:
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]


def _probe_seconds(batch: int, costs: Costs) -> tuple[float, float]:
    """Of a step without a draft, and of what drafting a token for everyone adds to it."""
    return costs.target.at(batch), costs.draft.at(1) + costs.target.slope * batch * costs.draft_rows(1)[1]


def _gains(candidate: Candidate) -> list[float]:
    """Expected accepted tokens by length: α + α² + … + α^length."""
    return list(accumulate((candidate.acceptance**level for level in range(1, candidate.cap + 1)), initial=0.0))
