"""Requests that between them use every sampling feature."""

from __future__ import annotations

from dataclasses import replace

from fleet.generation import GenerationRequest, SamplingParams

GREEDY = SamplingParams(seed=1, max_tokens=24, temperature=0.0)


def request(
    name: str, sampling: SamplingParams = GREEDY, *, prompt_length: int = 5, choice: int = 0
) -> GenerationRequest:
    """Prompts differ by name and are reproducible."""
    prompt = tuple((7 * position + 13 * sum(name.encode())) % 40 + 3 for position in range(prompt_length))
    return GenerationRequest(name, prompt, sampling)


def mixed_requests() -> list[GenerationRequest]:
    """Every request feature, prompts of one token to many chunks, and choices that share a seed."""
    base = SamplingParams(seed=11, max_tokens=20, ignore_eos=True)
    variants = {
        "greedy": replace(base, temperature=0.0),
        "sampled": base,
        "nucleus": replace(base, temperature=0.8, top_p=0.9),
        "top-k": replace(base, top_k=5),
        "min-p": replace(base, min_p=0.2),
        "repetition": replace(base, temperature=0.0, repetition_penalty=1.3),
        "penalties": replace(base, presence_penalty=1.0, frequency_penalty=0.7),
        "bias": replace(base, logit_bias=((5, 3.0), (9, -100.0))),
        "min-tokens": replace(base, ignore_eos=False, min_tokens=6, logit_bias=((2, 4.0),)),
        "eos": replace(base, ignore_eos=False, logit_bias=((2, 2.0),)),
        "stop-ids": replace(base, stop_token_ids=(7, 11), max_tokens=60),
        "stop-string": replace(base, stop=("&", "7"), max_tokens=60),
        "kept-stop": replace(base, stop=("&", "7"), include_stop_in_output=True, max_tokens=60),
        "logprobs": replace(base, logprobs=3, temperature=0.7),
        "one-token": replace(base, max_tokens=1),
        "two-tokens": replace(base, max_tokens=2),
    }
    lengths = (1, 2, 5, 17, 40)
    singles = [
        request(name, sampling, prompt_length=lengths[i % 5]) for i, (name, sampling) in enumerate(variants.items())
    ]
    twins = [replace(request("twin", base), request_id=f"twin-{choice}", choice_index=choice) for choice in range(2)]
    return [*singles, *twins]
