"""One sequence at the draft: its committed tokens, the guesses beyond them, and how far the cache follows.

`cached` counts the tokens of prompt + output + guess that have been run through the draft model. A verdict only
moves these marks: rejected tokens are cut off, and a fully accepted block leaves its last token and the bonus
to be run together next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from fleet.generation import SamplingParams
from replicas.speculation.messages import Opening, Proposal
from replicas.speculation.rejection import Sparse


@dataclass(frozen=True, slots=True)
class DraftWork:
    """One sequence's share of the draft's next forward pass: run `token_ids` from `position` on, then sample."""

    sequence_id: int
    position: int
    token_ids: tuple[int, ...]
    samples: bool
    """False for a chunk in the middle of a prompt."""
    wants_runner_up: bool
    names_distribution: bool
    """Draw with the draft's own noise and name what from, as acceptance by rejection needs; else with the target's."""
    sampling: SamplingParams
    choice_index: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Committed output followed by the guess so far."""


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """What the draft sampled, and what it would have taken otherwise."""

    token_id: int
    runner_up: int | None = None
    distribution: Sparse | None = None


@dataclass(slots=True)
class Drafting:
    """Built from an Opening; `context_limit` is the draft model's own."""

    opening: Opening
    context_limit: int
    asked: int
    asked_at: float
    touched_at: float
    is_judged: bool = False
    """Acceptance is by rejection: what is proposed names what it was drawn from. What only guesses at the target's own
    draw, the bonus or a recovered token, does not, and is never proposed."""
    is_owing: bool = True
    is_refused: bool = False
    """The cache had no room: answered with empty proposals until some is freed."""
    was_ready: bool = False
    cached: int = 0
    output: list[int] = field(default_factory=list)
    guess: list[DraftedToken] = field(default_factory=list)
    """The continuation that the cache follows now."""
    finished: list[list[DraftedToken]] = field(default_factory=list)
    """Guesses set aside; the first is the main one."""
    branch: int | None = None
    """None on the main guess, else the position at which the runner-up was taken."""

    @property
    def committed_length(self) -> int:
        return self.opening.prompt_length + len(self.output)

    @property
    def backlog(self) -> int:
        """Tokens to run before the next one can be sampled; at least 1."""
        return self.committed_length + len(self.guess) - self.cached

    @property
    def room(self) -> int:
        return max(0, self.context_limit - self.committed_length)

    @property
    def is_complete(self) -> bool:
        """The proposal that is owed can be given."""
        return self.is_refused or len(self.guess) >= min(self.asked, self.room)

    def settle(self, committed: Sequence[int], asked: int, now: float) -> None:
        """Commit the target's tokens and keep of the guesses what still holds."""
        base, count = self.committed_length, len(committed)
        followed, survivor = (
            _ids(self.guess),
            max(
                (guess for guess in (self.guess, *self.finished) if _ids(guess)[:count] == list(committed)),
                key=len,
                default=[],
            ),
        )
        self.output += committed
        self.guess = survivor[count:]
        if self.is_judged:
            self.guess = list(takewhile(lambda drafted: drafted.distribution is not None, self.guess))
        agreed = base + _common_prefix(followed, [*committed, *_ids(self.guess)])
        self.cached = min(self.cached, agreed, self.committed_length + len(self.guess) - 1)
        self.finished, self.branch = [], None
        self.asked, self.asked_at, self.touched_at = asked, now, now
        self.is_owing = asked > 0
        self.was_ready = self.is_owing and not self.is_refused and bool(self.guess) and self.is_complete

    def work(self, limit: int, *, draft_ahead: bool) -> DraftWork:
        """The next forward pass of this sequence, of at most `limit` tokens."""
        start = self.cached - self.opening.prompt_length
        beyond_prompt = [*self.output, *_ids(self.guess)]
        feed = (*self.opening.token_ids[self.cached : self.opening.prompt_length], *beyond_prompt[max(0, start) :])
        return DraftWork(
            sequence_id=self.opening.sequence_id,
            position=self.cached,
            token_ids=feed[:limit],
            samples=len(feed) <= limit,
            wants_runner_up=draft_ahead,
            names_distribution=self.is_judged and (self.branch is not None or len(self.guess) != self.asked),
            sampling=self.opening.sampling,
            choice_index=self.opening.choice_index,
            prompt_token_ids=self.opening.token_ids[: self.opening.prompt_length],
            output_token_ids=beyond_prompt,
        )

    def record(self, work: DraftWork, drafted: DraftedToken | None) -> None:
        """The pass was run; `drafted` is None when it did not sample."""
        self.cached = work.position + len(work.token_ids)
        if drafted is not None:
            self.guess.append(drafted)

    def refuse(self) -> None:
        """The cache is gone, and with it every guess."""
        self.is_refused = True
        self.guess, self.finished, self.branch, self.cached = [], [], None, 0

    def propose(self, now: float) -> Proposal:
        """Answer what was asked; afterwards nothing is owed."""
        self.is_owing = False
        proposed = [] if self.is_refused else self.guess[: min(self.asked, self.room)]
        return Proposal(
            sequence_id=self.opening.sequence_id,
            epoch=self.opening.epoch,
            base_length=self.committed_length,
            token_ids=tuple(_ids(proposed)),
            draft_seconds=now - self.asked_at,
            was_ready=self.was_ready,
            distributions=tuple(drafted.distribution for drafted in proposed if drafted.distribution is not None),
        )

    def look_ahead(self) -> bool:
        """Whether drafting on may pay while the verdict is out; moves to the next likeliest outcome when due.

        First full acceptance, the draft's own guess of the bonus, and the proposal after that. Then the first
        disagreement at position 0, 1, …: with acceptance rate α that is position i with (1−α)·α^i, so in order.
        """
        if self.is_owing or self.is_refused or self.asked == 0:
            return False
        start = self.asked if self.branch is None else self.branch
        if len(self.guess) < min(start + 1 + self.asked, self.room):
            return True
        return self._take_next_branch()

    def _take_next_branch(self) -> bool:
        index = 0 if self.branch is None else self.branch + 1
        main = self.finished[0] if self.finished else self.guess
        if index > self.asked or index >= len(main) or index + 1 >= self.room:
            return False
        second = main[index].runner_up
        if second is None:
            return False
        left, self.branch = self.guess, index
        self.finished.append(left)
        self.guess = [*main[:index], DraftedToken(second)]
        self.cached = min(self.cached, self.committed_length + _common_prefix(_ids(left), _ids(self.guess)))
        return True


def _ids(guess: Sequence[DraftedToken]) -> list[int]:
    return [drafted.token_id for drafted in guess]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
