"""What would another tool call this? Its latencies, by its own names, from what the router says of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Served:
    """One finished request as its own answer describes it: chunks i = 1…m at t_i, the request accepted at t_0."""

    ttft_ms: float
    """t_1 − t_0"""
    decode_ms: float
    """t_m − t_1"""
    tokens: int
    """N ≥ 1"""
    chunks: int
    """m ≥ 1"""
    tpot_ms: float | None = None
    """(t_m − t_1)/(N − n_1), with n_1 tokens in the first chunk; None where that holds all of them."""

    @classmethod
    def of(cls, usage: Mapping[str, Any], metrics: Mapping[str, Any]) -> Served:
        """From an answer's JSON objects of these names."""
        tokens = int(usage["completion_tokens"])
        return cls(
            ttft_ms=metrics["time_to_first_token_ms"],
            decode_ms=metrics["generation_time_ms"],
            tokens=tokens,
            chunks=round(tokens / metrics["fleet"]["tokens_per_chunk"]),
            tpot_ms=metrics["mean_itl_ms"],
        )

    @property
    def e2e_ms(self) -> float:
        """t_m − t_0"""
        return self.ttft_ms + self.decode_ms


def fleet_load(served: Sequence[Served]) -> dict[str, float]:
    """`fleet load`, in the router's own words."""
    return {
        "TTFT": fmean(one.ttft_ms for one in served),
        "TPOT": fmean(one.tpot_ms for one in served if one.tpot_ms is not None),
        "request": fmean(one.e2e_ms for one in served),
    }


def vllm_bench(served: Sequence[Served]) -> dict[str, float]:
    """`vllm bench serve`: its ITL is the gap between chunks, pooled; TPOT = (t_m − t_1)/(N − 1) where N > 1."""
    return {
        "ttft_ms": fmean(one.ttft_ms for one in served),
        "itl_ms": _gap(served),
        "tpot_ms": _per_later_token(served),
        "e2el_ms": fmean(one.e2e_ms for one in served),
    }


def guidellm(served: Sequence[Served]) -> dict[str, float]:
    """GuideLLM: ITL = (t_m − t_1)/(N − 1), weighted with N − 1; its TPOT counts the first token's time as well."""
    return {
        "time_to_first_token_ms": fmean(one.ttft_ms for one in served),
        "inter_token_latency_ms": sum(one.decode_ms for one in served) / sum(one.tokens - 1 for one in served),
        "time_per_output_token_ms": sum(one.e2e_ms for one in served) / sum(one.tokens for one in served),
    }


def aiperf(served: Sequence[Served]) -> dict[str, float]:
    """AIPerf: its ITL is what `vllm bench serve` calls TPOT, its ICL what that calls ITL."""
    return {
        "time_to_first_token": fmean(one.ttft_ms for one in served),
        "inter_token_latency": _per_later_token(served),
        "inter_chunk_latency": _gap(served),
        "request_latency": fmean(one.e2e_ms for one in served),
    }


def _gap(served: Sequence[Served]) -> float:
    return sum(one.decode_ms for one in served) / sum(one.chunks - 1 for one in served)


def _per_later_token(served: Sequence[Served]) -> float:
    return fmean(one.decode_ms / (one.tokens - 1) for one in served if one.tokens > 1)
