"""The sequences that a head follows: what was read of each, what is committed, and how it is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fleet.generation import SamplingParams
from replicas.engine.features import Seen
from replicas.engine.sampling import Draw
from replicas.speculation.messages import Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Want
from replicas.speculation.tree import NO_DRAFT, Draft

SURELY_UNWANTED_STEPS = 8


@dataclass(slots=True)
class Followed:
    """One sequence. A token of it is read once the target's features on it and the token after it are known."""

    sequence_id: int
    read: int = 0
    """Leading tokens that were read."""
    cached: int = 0
    """Those whose keys and values the head has: without a gap up to the backlog, but not always from the first on."""
    backlog: list[Seen] = field(default_factory=list)
    state: Tensor | None = None
    """What the head drafts from: its output (Medusa: the feature) on the last token that was run, [width]."""
    is_refused: bool = False
    """Beyond the head's context or memory: no drafts until the sequence starts anew."""
    is_wanted: bool = True
    """Drafts are asked for, as far as is known."""
    opening: Opening | None = None
    output: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Tokens in the backlog, which ends with the last that was read."""
        return self.read - self.backlog[0].position if self.backlog else 0

    def keep(self, chunk: Seen, tokens: int | None = None) -> bool:
        """Copy a chunk that was just read to the backlog, of which all or the last `tokens` are needed.

        True where others were let go.
        """
        first = self.backlog[0].position if self.backlog else chunk.position
        if tokens is None:
            tokens = self.read - first
        self.backlog.append(_end_of(chunk, tokens))
        while len(self.backlog) > 1 and self.read - self.backlog[1].position >= tokens:
            del self.backlog[0]
        return self.backlog[0].position > first

    @property
    def base_length(self) -> int:
        """Committed tokens, prompt included."""
        return self.opening.prompt_length + len(self.output) if self.opening else 0

    def open(self, opening: Opening) -> None:
        self.opening = replace(opening, sampling=_for_drafting(opening.sampling))
        self.output = list(opening.token_ids[opening.prompt_length :])
        self.is_wanted = opening.draft_length > 0

    def is_at(self, epoch: int, base_length: int) -> bool:
        return self.opening is not None and (self.opening.epoch, self.base_length) == (epoch, base_length)

    def has_read_all(self) -> bool:
        """The last committed token has no features yet: it is the next step's first input."""
        return not self.is_refused and self.read == self.base_length - 1

    def draw(self, branch: Sequence[int]) -> Draw:
        """How the token behind the output and a branch of drafted tokens is drawn: with the target's own noise."""
        assert self.opening is not None
        prompt = self.opening.token_ids[: self.opening.prompt_length]
        return Draw(self.opening.sampling, self.opening.choice_index, prompt, [*self.output, *branch])

    def proposal(self, draft: Draft) -> Proposal:
        assert self.opening is not None
        return Proposal(
            self.sequence_id,
            self.opening.epoch,
            self.base_length,
            draft.token_ids,
            parents=draft.parents,
            distributions=draft.distributions,
        )


class Following:
    """All followed sequences by id; keeps what is read and what is committed together."""

    def __init__(self) -> None:
        self._by_id: dict[int, Followed] = {}
        self._unwanted_steps = 0
        """Steps since a draft was asked for."""

    def read(self, seen: Seen) -> Followed | None:
        """The sequence with the chunk noted in it; None where the chunk does not follow what was read before."""
        if seen.position == 0:
            # One that ends needs no drafts either, so a few steps without say nothing of whoever comes next.
            is_wanted = self._unwanted_steps < SURELY_UNWANTED_STEPS
            self._by_id[seen.sequence_id] = Followed(seen.sequence_id, is_wanted=is_wanted)
        followed = self._by_id.get(seen.sequence_id)
        if followed is None or followed.is_refused or followed.read != seen.position:
            return None
        followed.read += len(seen.followers)
        return followed

    def open(self, opening: Opening) -> None:
        self._by_id.setdefault(opening.sequence_id, Followed(opening.sequence_id)).open(opening)

    def settle(self, verdicts: Iterable[SequenceVerdict]) -> None:
        is_unwanted = True
        for verdict in verdicts:
            is_unwanted &= verdict.next_draft_length == 0
            followed = self._by_id.get(verdict.sequence_id)
            if followed is not None and followed.is_at(verdict.epoch, verdict.base_length):
                followed.output += verdict.committed
                followed.is_wanted = verdict.next_draft_length > 0
        self._unwanted_steps = self._unwanted_steps + 1 if is_unwanted else 0

    def close(self, sequence_ids: Iterable[int]) -> None:
        for sequence_id in sequence_ids:
            self._by_id.pop(sequence_id, None)

    def ready(self, wants: Iterable[Want]) -> list[tuple[Followed, int]]:
        """The sequences that can be drafted for as they stand now, each with the depth that is wanted."""
        found = ((self._by_id.get(want.sequence_id), want) for want in wants)
        return [
            (followed, want.max_tokens)
            for followed, want in found
            if followed is not None and followed.is_at(want.epoch, want.base_length) and followed.has_read_all()
        ]

    def answers(self, wants: Iterable[Want], drafts: Mapping[int, Draft]) -> dict[int, Proposal]:
        """Proposals by sequence id; an empty one where there is no draft.

        That says: nothing is owed. A missing proposal would be taken for one that cost what this round took.
        """
        found = ((self._by_id.get(want.sequence_id), want) for want in wants)
        return {
            want.sequence_id: followed.proposal(drafts.get(want.sequence_id, NO_DRAFT))
            for followed, want in found
            if followed is not None and followed.is_at(want.epoch, want.base_length)
        }


def _end_of(chunk: Seen, tokens: int) -> Seen:
    skipped = max(0, len(chunk.followers) - tokens)
    # The target's next step may reuse the memory.
    features = chunk.features[skipped:].clone()
    return Seen(chunk.sequence_id, chunk.position + skipped, features, chunk.followers[skipped:])


def _for_drafting(sampling: SamplingParams) -> SamplingParams:
    """Log-probabilities are the target's to report."""
    return replace(sampling, logprobs=None)
