"""The latency definitions, against hand-made streams and the worked numbers of the design."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.stopwatch import Stopwatch

Chunks = list[tuple[float, int]]


def measured(
    chunks: Chunks, accepted_at: float = 0.0, itl_tokens: int = 8
) -> tuple[Stopwatch, list[float], list[float]]:
    stopwatch = Stopwatch(accepted_at, itl_tokens)
    itl: list[float] = []
    gaps: list[float] = []
    for at, tokens in chunks:
        lap = stopwatch.lap(at, tokens)
        itl.extend(lap.itl)
        if lap.gap is not None:
            gaps.append(lap.gap)
    return stopwatch, itl, gaps


def test_four_bursts_of_three_tokens_measure_as_the_reference_client_says() -> None:
    # 12 tokens as 4 bursts of 3, 40 ms apart, the first after 100 ms.
    stopwatch, itl, gaps = measured([(0.10, 3), (0.14, 3), (0.18, 3), (0.22, 3)])
    assert stopwatch.ttft == pytest.approx(0.100)
    assert stopwatch.tpot == pytest.approx(0.120 / 9)
    assert stopwatch.e2e == pytest.approx(0.220)
    assert gaps == pytest.approx([0.040, 0.040, 0.040])
    assert stopwatch.tokens_per_chunk == 3
    assert len(itl) == 9


def test_itl_looks_back_over_eight_tokens_and_over_all_there_are_before_that() -> None:
    _, itl, _ = measured([(1.0, 1), (2.0, 1), (4.0, 1), (5.0, 8)])
    assert itl[:2] == pytest.approx([1.0, 3.0 / 2])
    # Tokens 4 to 11 arrive together; each looks back at token max(1, j - 8), the last three at tokens 1, 2 and 3.
    assert itl[2:] == pytest.approx([4 / 3, 4 / 4, 4 / 5, 4 / 6, 4 / 7, 4 / 8, 3 / 8, 1 / 8])


def test_itl_over_one_token_is_the_classic_one() -> None:
    _, itl, _ = measured([(1.0, 1), (1.5, 2), (1.7, 1)], itl_tokens=1)
    assert itl == pytest.approx([0.5, 0.0, 0.2])


def test_a_stream_in_one_chunk_has_no_decode_metrics() -> None:
    stopwatch, itl, gaps = measured([(0.3, 5)])
    assert (stopwatch.ttft, stopwatch.tpot, itl, gaps) == (pytest.approx(0.3), None, [], [])
    assert stopwatch.stall == 0.0


def test_a_stream_without_a_token_has_no_latency_at_all() -> None:
    stopwatch = Stopwatch(1.0)
    assert (stopwatch.ttft, stopwatch.tpot, stopwatch.e2e, stopwatch.stall, stopwatch.tokens_per_chunk) == (None,) * 5
    assert stopwatch.open_gap(3.0) == 2.0
    assert stopwatch.itl_so_far(3.0) is None


def test_an_open_gap_bounds_the_next_itl_from_below() -> None:
    stopwatch, _, _ = measured([(1.0 + 0.02 * i, 1) for i in range(20)])
    bound = stopwatch.itl_so_far(5.0)
    assert bound is not None
    assert stopwatch.open_gap(5.0) == pytest.approx(5.0 - 1.38)
    assert stopwatch.lap(5.5, 1).itl[0] > bound > (5.0 - 1.38) / 8


def test_a_reader_who_is_served_at_his_pace_never_waits_and_a_pause_shows_as_its_share() -> None:
    steady, _, _ = measured([(0.02 * i, 1) for i in range(1, 11)])
    assert steady.stall == pytest.approx(0.0, abs=1e-9)
    # 5 tokens are read in 100 ms; the next 5 come after 200 ms: 100 ms of 300 ms are spent waiting.
    paused, _, _ = measured([(1.0, 5), (1.2, 5)])
    assert paused.stall == pytest.approx(1 / 3)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_every_token_after_the_first_chunk_has_one_itl_equal_to_the_plain_definition(
    steps: Chunks, itl_tokens: int
) -> None:
    at, chunks = 0.0, []
    for gap, tokens in steps:
        at += gap
        chunks.append((at, tokens))
    stopwatch, itl, gaps = measured(chunks, itl_tokens=itl_tokens)
    arrivals = [t for t, n in chunks for _ in range(n)]
    plain = []
    for j in range(chunks[0][1], len(arrivals)):
        k = min(itl_tokens, j)
        plain.append((arrivals[j] - arrivals[j - k]) / k)
    assert itl == pytest.approx(plain)
    assert stopwatch.tokens == len(arrivals)
    assert len(gaps) == len(chunks) - 1
    assert 0.0 <= (stopwatch.stall or 0.0) <= 1.0


def simulated(step_ms: float, accept: float | None) -> tuple[Callable[[float], float], Callable[[float], float], float]:
    """Quantile functions (ms) of itl and gap, and the stall share, of 200 streams as in the reference's simulation."""
    rng = random.Random(20)
    itl: list[float] = []
    gaps: list[float] = []
    stalls: list[float] = []
    for _ in range(200):
        at, left, chunks = 0.0, 256, []
        while left:
            at += step_ms * rng.gauss(1, 0.05) + (60 if rng.random() < 0.01 else 0)
            tokens = 1
            while chunks and accept is not None and tokens <= 4 and rng.random() < accept:
                tokens += 1
            chunks.append((at / 1000, min(tokens, left)))
            left -= chunks[-1][1]
        stopwatch, values, raw = measured(chunks)
        itl += values
        gaps += raw
        stalls.append(stopwatch.stall or 0.0)

    def quantile_of(values: list[float]) -> Callable[[float], float]:
        ordered = sorted(values)
        return lambda q: 1000 * ordered[int(q * len(ordered))]

    return quantile_of(itl), quantile_of(gaps), sum(stalls) / len(stalls)


@pytest.mark.parametrize(
    ("step_ms", "accept", "itl_p95", "gap_p95", "stall"),
    [
        (20, None, 27, 21.7, 0.030),
        (31, 0.75, 19, 33.5, 0.006),
        (31, 0.50, 26, 33.5, None),
        (31, 0.35, 30, 33.5, 0.056),
    ],
)
def test_the_designs_worked_numbers_come_out(
    step_ms: float, accept: float | None, itl_p95: float, gap_p95: float, stall: float | None
) -> None:
    itl, gap, share = simulated(step_ms, accept)
    assert itl(0.95) == pytest.approx(itl_p95, abs=1.0)
    assert gap(0.95) == pytest.approx(gap_p95, abs=0.6)
    if stall is not None:
        assert share == pytest.approx(stall, abs=0.012)


def test_stall_so_far_is_what_stall_would_be_if_the_next_token_came_now() -> None:
    watch = Stopwatch(0.0)
    assert watch.stall_so_far(1.0) is None
    watch.lap(1.0, 5)
    assert watch.stall_so_far(1.05) == 0.0
    assert watch.stall_so_far(1.4) == pytest.approx(0.3 / 0.4)
    watch.lap(1.4, 1)
    assert watch.stall == pytest.approx(0.3 / 0.42)
