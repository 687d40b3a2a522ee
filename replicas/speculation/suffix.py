"""Suffix decoding: what followed, here or in finished outputs, wherever the text went on like its present end?

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", arXiv:2411.04975. The
chance of a continuation is how often it followed the matched context. For every length of match the likeliest path is
followed while its chance stays high enough, and the path with the most expected accepted tokens, the sum of its
chances, is proposed: long after a long, unambiguous match, short or not at all otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from replicas.speculation.messages import FINISHED, Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.occurrences import SHORTEST_MATCH, Occurrences
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want


@dataclass(frozen=True, slots=True)
class SuffixLimits:
    """How far a match and a draft may reach."""

    depth: int
    """Matched and drafted tokens together."""
    factor: float
    """Drafted tokens per matched one, at most."""
    least_chance: float
    """Of the last token of a path."""

    def draft_tokens(self, matched: int) -> int:
        """How many tokens may be drafted after a match of so many."""
        return min(int(self.factor * matched), self.depth - matched)


@dataclass(frozen=True, slots=True)
class Path:
    """A continuation with its expected number of accepted tokens, in a draft of its own."""

    token_ids: tuple[int, ...] = ()
    expected: float = 0.0


def best_path(context: Sequence[int], text: Occurrences, limits: SuffixLimits, max_tokens: int) -> Path:
    """The continuation of `context` in `text` with the most expected accepted tokens; the longest match of equals."""
    matches = text.matches(context, limits.depth - 1)
    lengths = sorted({match.length for match in matches}, reverse=True)
    best = Path()
    for length, next_length in pairwise([*lengths, SHORTEST_MATCH - 1]):
        # All lengths between the two are matched at the same places: the one that allows most drafts is best.
        most = min(max_tokens, max(limits.draft_tokens(each) for each in range(next_length + 1, length + 1)))
        followers = [match.follower for match in matches if match.length >= length]
        path = _likeliest(followers, text, most, limits.least_chance)
        if path.expected > best.expected:
            best = path
    return best


def _likeliest(followers: Sequence[int], text: Occurrences, most: int, least_chance: float) -> Path:
    """Follow, from places that all continue the same context, what most of them say next."""
    token_ids: list[int] = []
    chance, expected = 1.0, 0.0
    while len(token_ids) < most:
        said = [text.token(place + len(token_ids)) for place in followers]
        counts = Counter(token_id for token_id in said if token_id is not None)
        if not counts:
            break
        # The counter keeps the order of insertion, and the latest places come first.
        token_id, count = max(counts.items(), key=lambda item: item[1])
        chance *= count / len(followers)
        if chance < least_chance:
            break
        followers = [place for place, token in zip(followers, said, strict=True) if token == token_id]
        token_ids.append(token_id)
        expected += chance
    return Path(tuple(token_ids), expected)


@dataclass(slots=True)
class _Text:
    """One sequence: its own tokens, prompt included, and where its output begins."""

    epoch: int
    prompt_length: int
    own: Occurrences = field(default_factory=Occurrences)

    def is_at(self, epoch: int, base_length: int) -> bool:
        return (self.epoch, len(self.own)) == (epoch, base_length)


class SuffixProposer:
    """Proposes, in the target's process, from the sequence itself and a bounded memory of finished outputs."""

    def __init__(self, limits: SuffixLimits, remembered_outputs: int) -> None:
        self._limits = limits
        self._finished = Occurrences(remembered_outputs)
        self._remembers = remembered_outputs > 0
        self._texts: dict[int, _Text] = {}

    def open(self, opening: Opening) -> None:
        text = _Text(opening.epoch, opening.prompt_length)
        text.own.extend(opening.token_ids)
        self._texts[opening.sequence_id] = text

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        proposals = {}
        for want in wants:
            text = self._texts.get(want.sequence_id)
            if text is None or not text.is_at(want.epoch, want.base_length):
                continue
            context = text.own.last(self._limits.depth)
            own, finished = (
                best_path(context, source, self._limits, want.max_tokens) for source in (text.own, self._finished)
            )
            path = finished if finished.expected > own.expected else own
            if path.token_ids:
                proposals[want.sequence_id] = Proposal(want.sequence_id, want.epoch, want.base_length, path.token_ids)
        return proposals

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        for verdict in verdicts:
            text = self._texts.get(verdict.sequence_id)
            if text is not None and text.is_at(verdict.epoch, verdict.base_length):
                text.own.extend(verdict.committed)

    def close(self, closing: Closing) -> None:
        """Remember what came to its own end, whole. The rest is not: a reader who left had no use for it, and what is
        preempted, or goes on elsewhere, is written again."""
        for sequence_id in closing.sequence_ids:
            text = self._texts.pop(sequence_id, None)
            if text is not None and self._remembers and closing.reason == FINISHED:
                text.own.extend(closing.last_committed.get(sequence_id, ()))
                self._finished.extend(text.own.since(text.prompt_length))
                self._finished.end_text()

    def state(self) -> ProposerState:
        return ProposerState(ProposerHealth.HEALTHY, draft_seconds=0.0, wire_seconds=0.0)
