"""Where an output ends and which of its text may be shown: stops, limits and text held back for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.generation import FinishReason, Resume, SamplingParams
from fleet.tokenizer import IncrementalDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Emission:
    """What a block of committed tokens comes to."""

    text: str
    """New text for the client."""
    kept: int
    """Leading tokens of the block that count; the rest lies beyond the end and is dropped."""
    finish: FinishReason | None = None
    stop_reason: int | str | None = None


class OutputText:
    """The text of one choice. Nothing depends on how its tokens are split into blocks.

    Per token, the first of these ends it: end of sequence, stop token id, stop string, max_tokens or the context
    limit. The token that ends it counts. The text of an end or stop token shows only with `include_stop_in_output`.
    A stop string ends the output where its last character completes it: before it, or after it when it is included.
    Up to `min_tokens`, only the limits count.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, prompt_token_ids: Sequence[int], max_model_len: int
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._decoder = IncrementalDecoder(tokenizer, prompt_token_ids)
        self._limit = min(sampling.max_tokens, max_model_len - len(prompt_token_ids))
        self._count = 0
        self._held = ""
        """Text that may turn out to begin a stop string."""
        self._delivered = 0
        """Characters at the front that the client has from another replica."""

    def resume(self, resume: Resume) -> Emission:
        """Take over from another replica: before any `feed`. The emission is what the client is still owed."""
        self._delivered = resume.text_length
        return self.feed(resume.token_ids)

    def feed(self, token_ids: Sequence[int]) -> Emission:
        """Go on with committed tokens, in order. Not to be called after a finish."""
        text = ""
        for kept, token_id in enumerate(token_ids, start=1):
            step = self._feed_one(token_id)
            text += step.text
            if step.finish is not None:
                return Emission(self._undelivered(text), kept, step.finish, step.stop_reason)
        return Emission(self._undelivered(text), len(token_ids))

    def _feed_one(self, token_id: int) -> Emission:
        self._count += 1
        may_stop = self._count > self._sampling.min_tokens
        if may_stop and self._is_end(token_id):
            shown = self._decoder.feed(token_id) if self._sampling.include_stop_in_output else ""
            reason = token_id if token_id in self._sampling.stop_token_ids else None
            return Emission(self._rest(shown), 1, FinishReason.STOP, reason)
        new = self._decoder.feed(token_id)
        found = self._stop_string(new) if may_stop else None
        if found is not None:
            text, stop = found
            return Emission(text, 1, FinishReason.STOP, stop)
        if self._count >= self._limit:
            return Emission(self._rest(new), 1, FinishReason.LENGTH)
        return Emission(self._release(new), 1)

    def _is_end(self, token_id: int) -> bool:
        is_eos = token_id in self._tokenizer.eos_token_ids and not self._sampling.ignore_eos
        return is_eos or token_id in self._sampling.stop_token_ids

    def _stop_string(self, new: str) -> tuple[str, str] | None:
        """The text up to the stop string that `new` completes first, and that string; the longest of several."""
        text = self._held + new
        ends = []
        for stop in self._sampling.stop:
            start = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if start >= 0:
                ends.append((start + len(stop), start, stop))
        if not ends:
            return None
        end, start, stop = min(ends)
        return text[: end if self._sampling.include_stop_in_output else start], stop

    def _release(self, new: str) -> str:
        """The text that cannot be the beginning of a stop string any more; the rest is held back."""
        text = self._held + new
        held = max((_overlap(text, stop) for stop in self._sampling.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _rest(self, last: str) -> str:
        """Everything held back, at the end."""
        text = self._held + last + self._decoder.flush()
        self._held = ""
        return text

    def _undelivered(self, text: str) -> str:
        owed = text[self._delivered :]
        self._delivered -= len(text) - len(owed)
        return owed


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
