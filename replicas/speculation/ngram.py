"""Prompt lookup: what followed the last time the sequence ended like this?

Saxena, "Prompt Lookup Decoding", 2023: good where the output repeats its input, such as edits, quotes and code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want


class NgramProposer:
    """Proposes, in the target's process, what followed the most recent earlier occurrence of the longest suffix."""

    def __init__(self, shortest: int, longest: int) -> None:
        """Suffixes of `shortest` to `longest` tokens are looked up, 1 ≤ shortest ≤ longest; the longest match wins."""
        self._sizes = range(longest, shortest - 1, -1)
        self._sequences: dict[int, _History] = {}

    def open(self, opening: Opening) -> None:
        self._sequences[opening.sequence_id] = _History(opening.epoch, self._sizes, opening.token_ids)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        proposals = {}
        for want in wants:
            history = self._sequences.get(want.sequence_id)
            if history is None or not history.is_at(want.epoch, want.base_length):
                continue
            token_ids = history.continuation(want.max_tokens)
            if token_ids:
                proposals[want.sequence_id] = Proposal(want.sequence_id, want.epoch, want.base_length, token_ids)
        return proposals

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        for verdict in verdicts:
            history = self._sequences.get(verdict.sequence_id)
            if history is not None and history.is_at(verdict.epoch, verdict.base_length):
                history.extend(verdict.committed)

    def close(self, closing: Closing) -> None:
        for sequence_id in closing.sequence_ids:
            self._sequences.pop(sequence_id, None)

    def state(self) -> ProposerState:
        return ProposerState(ProposerHealth.HEALTHY, draft_seconds=0.0, wire_seconds=0.0)


class _History:
    """The tokens of one sequence, and where each run of them was last followed by something."""

    def __init__(self, epoch: int, sizes: range, token_ids: Sequence[int]) -> None:
        self._epoch = epoch
        self._token_ids: list[int] = []
        self._followed_at: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in sizes}
        self.extend(token_ids)

    def is_at(self, epoch: int, base_length: int) -> bool:
        return self._epoch == epoch and len(self._token_ids) == base_length

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index every run that ends just before one of the new tokens: it now has a follower."""
        first = len(self._token_ids)
        self._token_ids.extend(token_ids)
        for size, followed_at in self._followed_at.items():
            for follower in range(max(first, size), len(self._token_ids)):
                followed_at[tuple(self._token_ids[follower - size : follower])] = follower

    def continuation(self, max_tokens: int) -> tuple[int, ...]:
        """Up to `max_tokens` tokens; where the match reaches the present end, it repeats with its own period."""
        length = len(self._token_ids)
        for size, followed_at in self._followed_at.items():
            start = followed_at.get(tuple(self._token_ids[-size:])) if size <= length else None
            if start is not None:
                period = length - start
                return tuple(self._token_ids[start + offset % period] for offset in range(max_tokens))
        return ()
