"""Which token follows: a deterministic function of logits, sampling parameters, seed and output position.

Order: logit_bias, penalties, min_tokens (`adjustments`), then temperature, min_p, top-k, top-p and the draw (`race`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from fleet.errors import FleetError
from fleet.generation import SamplingParams, TokenLogprob
from replicas.engine.adjustments import adjusted, is_adjusted
from replicas.engine.noise import Purpose, stream_key
from replicas.engine.race import Logits, distribution, draw_sparse, likeliest, race, ranking
from replicas.engine.transfer import to_device, to_host
from replicas.speculation.rejection import Sparse

NOTHING = -1
"""Stands for the token of a row that allows none."""
DRAFT_TOKENS = 64
"""Tokens that a judged draft is drawn from: what lies beyond them is seldom drawn and never missed."""


class Unusable(StrEnum):
    """Why no token can follow a row of logits: whose fault it is."""

    MODEL = "the model's logits are not a number or infinite"
    REQUEST = "what the request does to the logits leaves no token that may follow"


class UnusableLogits(FleetError):
    """No token can follow some rows; `reasons` has why, by row index."""

    def __init__(self, reasons: Mapping[int, Unusable]) -> None:
        super().__init__("; ".join(sorted(set(reasons.values()))))
        self.reasons = dict(reasons)


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits is sampled with."""

    sampling: SamplingParams
    choice_index: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Committed output followed by the drafted tokens before this row; its length is the absolute output position."""

    def key(self, purpose: Purpose) -> int:
        return stream_key(self.sampling.seed, self.choice_index, len(self.output_token_ids), purpose)


@dataclass(frozen=True, slots=True)
class Sample:
    """A drawn token; its log-probability is the model's own, before bias, penalties and temperature."""

    token_id: int
    logprob: TokenLogprob | None
    """None unless the request asked for it."""


class Sampler:
    """Draws from rows of logits. Ids from `vocab_size` on are padding of the model's output and never drawn."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> list[Sample]:
        """One token per row of `logits` (float32 [R, V], V ≥ vocab_size), each as its draw says.

        A row's token depends on nothing but that row and its draw. Raises UnusableLogits with the rows that allow no
        token; the others can be sampled again without them.
        """
        logits = logits[:, : self._vocab_size]
        token_ids = self._token_ids(logits, draws)
        asking = [row for row, draw in enumerate(draws) if draw.sampling.logprobs is not None]
        top = max((draws[row].sampling.logprobs or 0 for row in asking), default=0)
        logprobs = self.logprobs(logits[asking], [token_ids[row] for row in asking], top) if asking else []
        found = dict(zip(asking, logprobs, strict=True))
        return [Sample(token_id, _asked(found.get(row), draws[row])) for row, token_id in enumerate(token_ids)]

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
        """The model's natural log-probability of one token per row ([R, V]), and of the row's `top` likeliest."""
        logits = logits[:, : self._vocab_size]
        total = logits.logsumexp(-1, keepdim=True)
        chosen = logits.gather(1, to_device(torch.tensor(token_ids), logits.device)[:, None]) - total
        best = logits.topk(min(top, self._vocab_size))
        alternatives = zip(best.indices.tolist(), (best.values - total).tolist(), strict=True)
        return [
            TokenLogprob(token_id, logprob, tuple(zip(ids, logprobs, strict=True)))
            for token_id, logprob, (ids, logprobs) in zip(token_ids, chosen[:, 0].tolist(), alternatives, strict=True)
        ]

    def probabilities(self, logits_row: Tensor, draw: Draw) -> Tensor:
        """The exact distribution that `sample` draws this row's token from: float64 [vocab_size].

        At temperature 0 all of it is on one token. Raises UnusableLogits where nothing may follow.
        """
        row = self._adjusted(to_host(logits_row[: self._vocab_size]).numpy(), draw)
        if not math.isfinite(row.max()):
            raise UnusableLogits({0: _reason(logits_row[: self._vocab_size])})
        if not draw.sampling.is_greedy:
            return torch.from_numpy(distribution(row, draw.sampling))
        probabilities = torch.zeros(len(row), dtype=torch.float64)
        probabilities[int(row.argmax())] = 1.0
        return probabilities

    def candidates(self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int]) -> list[tuple[int, ...]]:
        """For a draft: up to `counts[row]` tokens of each row, the one that `sample` draws ahead, then the next best.

        They come in as the row's race goes: at temperature 0 by logit, else with its noise. A row that allows no
        token has none.
        """
        logits = logits[:, : self._vocab_size]
        if max(counts, default=1) == 1:
            return [() if token_id is None else (token_id,) for token_id in self._drawn(logits, draws)]
        on_host = to_host(logits).numpy()
        return [self._ranked(on_host[row], draw, counts[row]) for row, draw in enumerate(draws)]

    def drafts(
        self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int]
    ) -> list[tuple[tuple[int, ...], Sparse] | None]:
        """For a draft that the rejection rule judges: up to `counts[row]` tokens of each row, and exactly what they
        were drawn from, one after the other without putting back.

        That is the row's distribution cut to its `DRAFT_TOKENS` likeliest tokens. None where nothing may follow.
        """
        on_host = to_host(logits[:, : self._vocab_size]).numpy()
        return [self._draft(on_host[row], draw, counts[row]) for row, draw in enumerate(draws)]

    def _draft(self, row: Logits, draw: Draw, count: int) -> tuple[tuple[int, ...], Sparse] | None:
        row = self._adjusted(row, draw)
        if not math.isfinite(row.max()):
            return None
        if draw.sampling.is_greedy:
            # The target's distribution is one token too: what the others are said to weigh changes nothing.
            token_ids = _highest(row, count)
            return token_ids, Sparse.rounded(token_ids, (1 / len(token_ids),) * len(token_ids))
        cut = likeliest(row, draw.sampling, DRAFT_TOKENS)
        return draw_sparse(cut, draw.key(Purpose.DRAFT), count), cut

    def _token_ids(self, logits: Tensor, draws: Sequence[Draw]) -> list[int]:
        token_ids = self._drawn(logits, draws)
        unusable = {row: _reason(logits[row]) for row, token_id in enumerate(token_ids) if token_id is None}
        if unusable:
            raise UnusableLogits(unusable)
        return [token_id for token_id in token_ids if token_id is not None]

    def _drawn(self, logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
        """Each row's token; None where nothing may follow."""
        best = _first_of_the_best(logits)
        peaks = logits.gather(1, best[:, None])[:, 0]
        known = best.where(peaks.isfinite(), NOTHING).tolist()  # one answer, for a GPU is waited for with each
        token_ids: list[int | None] = [None if token_id == NOTHING else token_id for token_id in known]
        drawn = [row for row, draw in enumerate(draws) if token_ids[row] is not None and not self._is_plain(draw)]
        if drawn:
            on_host = to_host(logits if len(drawn) == len(draws) else logits[drawn]).numpy()
            for values, row in zip(on_host, drawn, strict=True):
                ranked = self._ranked(values, draws[row], 1)
                token_ids[row] = ranked[0] if ranked else None
        return token_ids

    def _ranked(self, row: Logits, draw: Draw, count: int) -> tuple[int, ...]:
        """The row's first tokens in order; none where nothing may follow."""
        row = self._adjusted(row, draw)
        if not math.isfinite(row.max()):
            return ()
        if draw.sampling.is_greedy:
            return _highest(row, count)
        key = draw.key(Purpose.TOKEN)
        return (race(row, draw.sampling, key),) if count == 1 else ranking(row, draw.sampling, key, count)

    def _is_plain(self, draw: Draw) -> bool:
        return draw.sampling.is_greedy and not is_adjusted(draw.sampling, len(draw.output_token_ids))

    def _adjusted(self, row: Logits, draw: Draw) -> Logits:
        if not is_adjusted(draw.sampling, len(draw.output_token_ids)):
            return row
        return adjusted(row, draw.sampling, draw.prompt_token_ids, draw.output_token_ids, self._eos_token_ids)


def _reason(logits_row: Tensor) -> Unusable:
    """Whose fault it is that nothing may follow; NaN is the maximum of a row that has one."""
    return Unusable.REQUEST if math.isfinite(logits_row.max().item()) else Unusable.MODEL


def _first_of_the_best(rows: Tensor) -> Tensor:
    """The index of each row's maximum, the lowest among equals; of its NaN where there is one: [R, V] to int64 [R]."""
    if rows.device.type == "cpu":  # numpy is ten times as fast as torch here
        return torch.from_numpy(rows.numpy().argmax(1))
    return rows.argmax(1)


def _highest(row: Logits, count: int) -> tuple[int, ...]:
    """Ids of the `count` largest finite logits, descending, lower ids first among equals."""
    if count == 1:
        return (int(row.argmax()),)
    count = min(count, len(row))
    near = np.flatnonzero(row >= np.partition(row, len(row) - count)[len(row) - count])
    order = near[np.argsort(-row[near], kind="stable")][:count]
    return tuple(order[np.isfinite(row[order])].tolist())


def _asked(logprob: TokenLogprob | None, draw: Draw) -> TokenLogprob | None:
    """With as many alternatives as this draw wants; they were looked up for all rows at once."""
    return logprob and replace(logprob, top=logprob.top[: draw.sampling.logprobs])
