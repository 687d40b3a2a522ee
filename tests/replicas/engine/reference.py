"""The sampler's dumb twin: plain Python, one token and one rule at a time, no shortcut."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet.generation import SamplingParams

WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(word: int) -> int:
    word &= WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def exponential(seed: int, choice_index: int, position: int, token_id: int) -> float:
    key = 0
    for word in (seed, choice_index, position):
        key = mixed((key ^ mixed(word)) + GAMMA)
    of_block = mixed((-(token_id // 64)) * GAMMA + key)
    smallest = -math.log(((of_block >> 12) + 0.5) / 2**52) / 64
    if of_block % 64 == token_id % 64:
        return smallest
    return smallest - math.log(((mixed((token_id + 1) * GAMMA + key) >> 12) + 0.5) / 2**52)


def adjusted(
    logits: Sequence[float],
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_token_ids: frozenset[int],
) -> list[float]:
    result = list(logits)
    bias = dict(sampling.logit_bias)
    for token_id in range(len(result)):
        result[token_id] += bias.get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            worse = result[token_id] < 0
            result[token_id] *= sampling.repetition_penalty if worse else 1 / sampling.repetition_penalty
        if token_id in output:
            result[token_id] -= sampling.presence_penalty
        result[token_id] -= sampling.frequency_penalty * list(output).count(token_id)
        if len(output) < sampling.min_tokens and (token_id in eos_token_ids or token_id in sampling.stop_token_ids):
            result[token_id] = -math.inf
    return result


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    peak = max(logits)
    weights = [math.exp((logit - peak) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def probabilities(logits: Sequence[float], sampling: SamplingParams) -> list[float]:
    """What is drawn from, of logits that are already adjusted."""
    if sampling.temperature == 0:
        return [float(token_id == list(logits).index(max(logits))) for token_id in range(len(logits))]
    p = softmax(logits, sampling.temperature)
    if sampling.min_p > 0:
        p = [x if x >= max(p) * sampling.min_p * (1 - 1e-6) else 0.0 for x in p]
    if sampling.top_k > 0:
        weakest = sorted(p, reverse=True)[: sampling.top_k][-1]
        p = [x if x >= weakest else 0.0 for x in p]
    if sampling.top_p < 1:
        total = math.fsum(p)
        p = [x if math.fsum(y for y in p if y > x) < sampling.top_p * total else 0.0 for x in p]
    return [x / math.fsum(p) for x in p]
