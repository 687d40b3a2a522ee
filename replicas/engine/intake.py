"""Can this request run here at all? Says why not before it takes a place in the queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.generation import GenerationRequest


@dataclass(frozen=True, slots=True)
class Capacity:
    """What bounds one sequence on this replica."""

    vocab_size: int
    """Ids below it are tokens."""
    max_model_len: int
    kv_tokens: int


def token_limit(request: GenerationRequest, capacity: Capacity) -> int:
    """The most tokens that prompt and output can come to."""
    return min(len(request.prompt_token_ids) + request.sampling.max_tokens, capacity.max_model_len)


def refusal(request: GenerationRequest, capacity: Capacity) -> str | None:
    """Why the request can never run here; None when it can."""
    sampling = request.sampling
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        return "the prompt is empty"
    if prompt + min(1, sampling.max_tokens) > capacity.max_model_len:
        return f"the prompt has {prompt} tokens; the context holds {capacity.max_model_len}, answer included"
    longest = token_limit(request, capacity)
    if longest > capacity.kv_tokens:
        return f"prompt and max_tokens come to {longest} tokens; the KV cache holds {capacity.kv_tokens}"
    resumed = request.resume.token_ids if request.resume else ()
    if prompt + len(resumed) > longest:
        return f"the resumed output has {len(resumed)} tokens, more than max_tokens or the context allow"
    biased = (token_id for token_id, _ in sampling.logit_bias)
    for name, token_ids in (("prompt", request.prompt_token_ids), ("resumed", resumed), ("logit_bias", biased)):
        stranger = _first_outside(token_ids, capacity.vocab_size)
        if stranger is not None:
            return f"{name} token id {stranger} is outside the vocabulary of {capacity.vocab_size}"
    return None


def _first_outside(token_ids: Iterable[int], vocab_size: int) -> int | None:
    return next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
