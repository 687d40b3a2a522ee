"""What the rejection rule commits for one sequence: coins and recoveries from streams of their own."""

from __future__ import annotations

from collections.abc import Sequence as Items

from torch import Tensor

from replicas.engine.block import Block
from replicas.engine.noise import Purpose, coin
from replicas.engine.race import draw as draw_from
from replicas.engine.sampling import Draw, Sampler, UnusableLogits
from replicas.speculation.rejection import is_accepted, residual
from replicas.speculation.tree import Draft


def judged_block(sampler: Sampler, draft: Draft, logits: Tensor, draws: Items[Draw]) -> Block:
    """Judge a chain that brings its distributions; `logits` [len(draft) + 1, V] and `draws` are row by row."""
    try:
        committed = _committed(sampler, draft, logits, draws)
    except UnusableLogits as error:
        return Block(unusable=error.reasons[0])
    asked = draws[0].sampling.logprobs
    logprobs = () if asked is None else tuple(sampler.logprobs(logits[: len(committed)], committed, asked))
    return Block(tuple(committed), logprobs, tuple(range(len(committed) - 1)))


def _committed(sampler: Sampler, draft: Draft, logits: Tensor, draws: Items[Draw]) -> list[int]:
    """Rows behind a rejection are never looked at: they follow tokens that never were."""
    committed: list[int] = []
    for row, (token_id, q) in enumerate(zip(draft.token_ids, draft.distributions, strict=True)):
        p = sampler.probabilities(logits[row], draws[row]).numpy()
        if not is_accepted(token_id, p, q, coin(draws[row].key(Purpose.COIN))):
            return [*committed, draw_from(residual(p, q), draws[row].key(Purpose.RECOVERY))]
        committed.append(token_id)
    return [*committed, sampler.sample(logits[-1:], draws[-1:])[0].token_id]
