"""How much of the held-out answers would a trainee's drafts get accepted?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from deploy.train.acceptance import Acceptance, pooled, walk
from deploy.train.batches import Batch, grouped
from deploy.train.dialogues import Example
from deploy.train.trainee import Trainee

Pack = Callable[[Sequence[Example]], Batch]
"""Examples with the target's states, on the training device."""


@torch.no_grad()
def measure(trainee: Trainee, examples: Sequence[Example], pack: Pack, batch_tokens: int) -> Acceptance:
    """Rounds over all the examples, by drafted position."""
    lengths = [len(example.tokens) for example in examples]
    parts: list[Acceptance] = []
    for group in grouped(range(len(examples)), lengths, batch_tokens):
        chosen = [examples[index] for index in group]
        agreement = torch.split(trainee.agreement(pack(chosen)), [len(example.tokens) for example in chosen])
        for example, own in zip(chosen, agreement, strict=True):
            parts.append(walk(own.numpy(force=True), example.prompt_length))
    return pooled(parts, trainee.depth)
