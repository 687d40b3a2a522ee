"""Where in these texts does the end of another one occur? An index of token pairs, each linked to the one before it.

It takes a few words a token whatever the depth of the matches, and gives a match's true counts as long as its last two
tokens occur no more often than `LATEST`; beyond that, the counts of the latest.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_MATCH = 2
LATEST = 256
"""Occurrences that are looked at: the newest ones."""
MOST_TOKENS = 500_000
"""About 60 MiB: a token takes 12 bytes, and up to 116 more where it ends a pair that no other does."""
BREAK = -1
"""Ends a text; no token."""
NONE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier place whose preceding tokens are those at the end of the context."""

    follower: int
    """Place of the token after the matched ones."""
    length: int
    """Matched tokens."""


class Occurrences:
    """Texts end to end, within both limits as each of them ends; the oldest goes first. Places count on for ever."""

    def __init__(self, most_texts: int = 1, most_tokens: int = MOST_TOKENS) -> None:
        self._most_texts = most_texts
        self._most_tokens = most_tokens
        self._tokens = array("i")
        self._earlier = array("q")
        """For each token: place of the last token before it that ended the same pair."""
        self._latest: dict[int, int] = {}
        """Place of the second token of each pair's last occurrence, by `_pair`."""
        self._first = 0
        """Place of the oldest token that is still there."""
        self._ends: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            place = self._first + len(self._tokens)
            before = self.token(place - 1)
            self._tokens.append(token_id)
            earlier = NONE
            if before is not None:
                pair = _pair(before, token_id)
                earlier = self._latest.get(pair, NONE)
                self._latest[pair] = place
            self._earlier.append(earlier)

    def end_text(self) -> None:
        """What follows is another text: no match reaches across."""
        self._tokens.append(BREAK)
        self._earlier.append(NONE)
        self._ends.append(self._first + len(self._tokens))
        while self._ends and (len(self._ends) > self._most_texts or len(self._tokens) > self._most_tokens):
            self._forget(self._ends.popleft())

    def token(self, place: int) -> int | None:
        """The token at a place; None outside the text."""
        index = place - self._first
        token_id = self._tokens[index] if 0 <= index < len(self._tokens) else BREAK
        return None if token_id == BREAK else token_id

    def last(self, count: int) -> Sequence[int]:
        return self._tokens[max(0, len(self._tokens) - count) :]

    def since(self, index: int) -> Sequence[int]:
        """The tokens from the one at an index on."""
        return self._tokens[index:]

    def matches(self, context: Sequence[int], longest: int) -> list[Match]:
        """Places that continue the end of `context`, the newest first; matches are cut to `longest` tokens."""
        if len(context) < SHORTEST_MATCH or longest < SHORTEST_MATCH:
            return []
        found: list[Match] = []
        place = self._latest.get(_pair(context[-2], context[-1]), NONE)
        while place >= self._first and len(found) < LATEST:
            if self.token(place + 1) is not None:
                found.append(Match(place + 1, self._matched(place, context, longest)))
            place = self._earlier[place - self._first]
        return found

    def _matched(self, place: int, context: Sequence[int], longest: int) -> int:
        length = SHORTEST_MATCH
        limit = min(longest, len(context))
        while length < limit and self.token(place - length) == context[-1 - length]:
            length += 1
        return length

    def _forget(self, end: int) -> None:
        """Drop everything before `end`, and with it the pairs that occur nowhere else."""
        for place in range(self._first + 1, end):
            pair = _pair(self._tokens[place - 1 - self._first], self._tokens[place - self._first])
            if self._latest.get(pair) == place:
                del self._latest[pair]
        del self._tokens[: end - self._first]
        del self._earlier[: end - self._first]
        self._first = end


def _pair(before: int, token_id: int) -> int:
    """Two ids in one number: a third of the memory of a tuple."""
    return before << 32 | token_id
