"""What is learnt, what is only measured, and over which vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.train.batches import Batch, packed
from deploy.train.dialogues import Example
from deploy.train.features import Features
from deploy.train.gather import corpus_folder
from deploy.train.settings import TrainSettings
from deploy.train.target import Target
from deploy.train.vocabulary import DraftVocabulary, coverage, most_frequent

UNESSENTIAL = frozenset(
    {
        *("out", "corpus", "cache_gib", "threads", "device", "license", "dry_run", "target"),
        *("prompts", "held_out_prompts", "held_out", "generate", "answer_batch"),
        *("evaluate_every", "evaluate_answers", "checkpoint_every"),
    }
)
"""Settings that may change when a training is resumed. What those about data lead to is compared instead."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Examples of one target, with its states at hand."""

    taught: Sequence[Example]
    held_out: Sequence[Example]
    vocabulary: DraftVocabulary
    features: Features
    target: Target

    @property
    def tokens(self) -> int:
        """Of what is learnt, prompts included."""
        return sum(len(example.tokens) for example in self.taught)

    @property
    def coverage(self) -> str:
        """A sentence on the vocabulary."""
        which, examples = ("held-out", self.held_out) if self.held_out else ("learnt", self.taught)
        return f"{len(self.vocabulary)} tokens cover {coverage(self.vocabulary, examples):.1%} of the {which} answers."

    @property
    def summary(self) -> str:
        return (
            f"{len(self.taught)} answers to learn ({self.tokens} tokens with their prompts), "
            f"{len(self.held_out)} held out; {self.coverage}"
        )

    def pack(self, examples: Sequence[Example]) -> Batch:
        """Examples with the target's states, on the training device."""
        return packed(examples, self.features.of(examples), self.target.weights.device)

    def identity(self, settings: TrainSettings) -> dict[str, str]:
        """What must be the same for a training to go on, by name."""
        named = {name: repr(value) for name, value in settings if name not in UNESSENTIAL}
        answers = hashlib.sha256("".join(example.key for example in self.taught).encode()).hexdigest()
        return {**named, "target": self.target.weights.digest, "answers": answers}


def make_lesson(settings: TrainSettings, target: Target, examples: Sequence[Example], vocabulary_size: int) -> Lesson:
    """Split the examples, count their tokens, and open the cache of the target's states."""
    taught = [example for example in examples if not example.is_held_out]
    vocab_size = int(target.weights.embedding.shape[0])
    ends = sorted(target.tokenizer.eos_token_ids)
    frequent = most_frequent(taught, vocabulary_size, vocab_size, ends).target_ids.to(target.weights.device)
    features = Features(target, corpus_folder(settings, target) / "states", int(settings.cache_gib * 2**30))
    held_out = [example for example in examples if example.is_held_out]
    return Lesson(taught, held_out, DraftVocabulary(frequent, vocab_size), features, target)
