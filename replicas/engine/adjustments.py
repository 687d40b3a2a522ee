"""What a request changes about the logits before temperature: logit_bias, penalties and the min_tokens mask."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.generation import SamplingParams
from replicas.engine.noise import Ids


def is_adjusted(sampling: SamplingParams, position: int) -> bool:
    """Whether the logits at this output position differ from the model's at all."""
    return bool(sampling.logit_bias) or _has_penalties(sampling) or position < sampling.min_tokens


def adjusting_fields(sampling: SamplingParams) -> tuple[str, ...]:
    """The request's fields that change the logits, by their names in the API."""
    changes = {
        "logit_bias": bool(sampling.logit_bias),
        "repetition_penalty": sampling.repetition_penalty != 1.0,
        "presence_penalty": sampling.presence_penalty != 0.0,
        "frequency_penalty": sampling.frequency_penalty != 0.0,
        "min_tokens": sampling.min_tokens > 0,
        "stop_token_ids": sampling.min_tokens > 0 and bool(sampling.stop_token_ids),
    }
    return tuple(name for name, is_set in changes.items() if is_set)


def adjusted(
    row: NDArray[np.float32],
    sampling: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    eos_token_ids: frozenset[int],
) -> NDArray[np.float32]:
    """A changed copy of the logits [V] of the token that follows prompt and output.

    `output_token_ids` includes the drafted tokens before this row. Ids outside [0, V) are ignored.
    """
    row = row.copy()
    for token_id, bias in sampling.logit_bias:
        if 0 <= token_id < len(row):
            row[token_id] += bias
    if _has_penalties(sampling):
        _penalise(row, sampling, prompt_token_ids, output_token_ids)
    if len(output_token_ids) < sampling.min_tokens:
        row[_known(eos_token_ids.union(sampling.stop_token_ids), len(row))] = -math.inf
    return row


def _penalise(
    row: NDArray[np.float32],
    sampling: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> None:
    """Repetition over prompt and output, then frequency and presence over the output alone, as vLLM does."""
    counts = Counter(output_token_ids)
    if sampling.repetition_penalty != 1.0:
        seen = _known(counts.keys() | set(prompt_token_ids), len(row))
        penalty = np.float32(sampling.repetition_penalty)
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    written = _known(counts.keys(), len(row))
    times = np.array([counts[token_id] for token_id in written.tolist()], dtype=np.float32)
    row[written] -= np.float32(sampling.frequency_penalty) * times + np.float32(sampling.presence_penalty)


def _has_penalties(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _known(token_ids: Collection[int], vocab_size: int) -> Ids:
    """Those of the ids that a row has, ascending, as an index."""
    return np.array(sorted(token_id for token_id in token_ids if 0 <= token_id < vocab_size), dtype=np.int64)
