"""The same requests under three tools' names, reckoned here from every single chunk."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.bench.definitions import Served, aiperf, fleet_load, guidellm, vllm_bench
from router.stopwatch import Stopwatch

Chunks = list[tuple[float, int]]
"""(milliseconds since the one before or the request, tokens)"""

requests = st.lists(
    st.lists(st.tuples(st.floats(1, 100), st.integers(1, 5)), min_size=2, max_size=12), min_size=1, max_size=6
)


def times_of(chunks: Chunks) -> list[float]:
    at, times = 0.0, []
    for wait, _ in chunks:
        at += wait
        times.append(at)
    return times


def served(chunks: Chunks) -> Served:
    """Through the router's own stopwatch and the figures that it publishes."""
    watch = Stopwatch(0.0)
    for at, (_, tokens) in zip(times_of(chunks), chunks, strict=True):
        watch.lap(at / 1000, tokens)
    assert watch.ttft is not None
    assert watch.e2e is not None
    return Served.of(
        {"completion_tokens": watch.tokens},
        {
            "time_to_first_token_ms": watch.ttft * 1000,
            "generation_time_ms": (watch.e2e - watch.ttft) * 1000,
            "mean_itl_ms": None if watch.tpot is None else watch.tpot * 1000,
            "fleet": {"tokens_per_chunk": watch.tokens_per_chunk},
        },
    )


@given(requests)
def test_each_tools_figures_follow_from_what_the_router_publishes(all_chunks: list[Chunks]) -> None:
    figures = [served(chunks) for chunks in all_chunks]
    times = [times_of(chunks) for chunks in all_chunks]
    sizes = [sum(tokens for _, tokens in chunks) for chunks in all_chunks]
    gaps = [later - sooner for each in times for sooner, later in pairwise(each)]
    per_token = [(each[-1] - each[0]) / (size - 1) for each, size in zip(times, sizes, strict=True)]
    first = fmean(each[0] for each in times)
    assert fleet_load(figures) == pytest.approx(
        {
            "TTFT": first,
            "TPOT": fmean(
                (each[-1] - each[0]) / (size - chunks[0][1])
                for each, size, chunks in zip(times, sizes, all_chunks, strict=True)
            ),
            "request": fmean(each[-1] for each in times),
        }
    )
    assert vllm_bench(figures) == pytest.approx(
        {
            "ttft_ms": first,
            "itl_ms": fmean(gaps),
            "tpot_ms": fmean(per_token),
            "e2el_ms": fmean(each[-1] for each in times),
        }
    )
    assert aiperf(figures) == pytest.approx(
        {
            "time_to_first_token": first,
            "inter_token_latency": fmean(per_token),
            "inter_chunk_latency": fmean(gaps),
            "request_latency": fmean(each[-1] for each in times),
        }
    )
    # Weighted by tokens: as if every token were listed with the mean of its request.
    listed = [mean for mean, size in zip(per_token, sizes, strict=True) for _ in range(size - 1)]
    whole = [each[-1] / size for each, size in zip(times, sizes, strict=True) for _ in range(size)]
    assert guidellm(figures) == pytest.approx(
        {
            "time_to_first_token_ms": first,
            "inter_token_latency_ms": fmean(listed),
            "time_per_output_token_ms": fmean(whole),
        }
    )
