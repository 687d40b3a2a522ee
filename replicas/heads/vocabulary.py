"""Which of the target's tokens can an EAGLE head draft? Those that the `d2t` of its file leads to."""

from __future__ import annotations

from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET, CutVocabulary, offset_vocabulary
from replicas.heads.checkpoint import Checkpoint


def drafted_vocabulary(checkpoint: Checkpoint, size: int, vocab_size: int) -> CutVocabulary:
    """The vocabulary of `size` tokens; ConfigError where the file's `d2t` does not say which of the target's."""
    offsets = checkpoint.take(DRAFT_TO_TARGET, size)
    return offset_vocabulary(offsets, vocab_size, f"{checkpoint.name}: '{DRAFT_TO_TARGET}'")
