"""Predicted speed-up: the reference's tables, the limits of the formula, and where it stops paying."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.planning.acceptance import Acceptance
from deploy.planning.config_file import find_architecture
from deploy.planning.kv_cache import kv_cache
from deploy.planning.roofline import TARGET_OVERHEAD_SECONDS, Load, model_cost, pass_seconds
from deploy.planning.speedup import (
    Pairing,
    best_length,
    paying_batches,
    predict,
    round_seconds,
    speed_up,
    with_round_trip,
)
from tests.deploy.planning.references import H200, pairing, proposer

BATCHES = (1, 16, 32, 64, 128, 256)
DRAFT_1B = "draft_model:meta-llama/Llama-3.2-1B-Instruct"
TABLE = [
    (512, "eagle3,k=4", 0.75, (1.98, 2.01, 2.04, 1.46, 1.00, 0.87)),
    (512, "eagle3,k=3", 0.6, (1.55, 1.57, 1.58, 1.27, 0.87, 0.76)),
    (512, DRAFT_1B + ",k=4", 0.75, (1.63, 1.62, 1.62, 1.21, 0.86, 0.75)),
    (4096, "eagle3,k=4", 0.75, (2.00, 2.16, 2.27, 1.96, 1.75, 1.71)),
    (4096, DRAFT_1B + ",k=3", 0.6, (1.31, 1.29, 1.28, 1.16, 1.03, 1.00)),
]
ROUND_TRIPS = [
    (0, (1.98, 2.01, 1.46)),
    (1, (1.77, 1.80, 1.36)),
    (2, (1.60, 1.64, 1.27)),
    (4, (1.35, 1.38, 1.13)),
    (8, (1.02, 1.05, 0.93)),
]


@pytest.mark.parametrize(("context", "text", "rate", "row"), TABLE)
def test_the_8b_on_an_h200_agrees_with_the_reference(
    context: int, text: str, rate: float, row: tuple[float, ...]
) -> None:
    pair = pairing(text, rate)
    length = pair.proposer.spec.draft_length
    predicted = [speed_up(pair, Load(batch, context), length) for batch in BATCHES]
    assert predicted == pytest.approx(row, abs=0.008)


@pytest.mark.parametrize(("milliseconds", "row"), ROUND_TRIPS)
def test_a_round_trip_costs_what_the_reference_says(milliseconds: int, row: tuple[float, ...]) -> None:
    pair = pairing("eagle3", 0.75, milliseconds / 1000)
    assert [speed_up(pair, Load(batch, 512), 4) for batch in (1, 16, 64)] == pytest.approx(row, abs=0.008)


def test_four_milliseconds_to_a_separate_draft_agree_with_the_reference() -> None:
    pair = pairing(DRAFT_1B, 0.75, 0.004)
    assert [speed_up(pair, Load(batch, 512), 4) for batch in (1, 16, 64)] == pytest.approx(
        (1.17, 1.19, 0.98), abs=0.008
    )


@pytest.mark.parametrize(("text", "rate"), [("eagle3", 0.75), (DRAFT_1B, 0.75), ("eagle3,k=3", 0.6)])
def test_not_reading_the_embedding_changes_no_cell_by_more_than_five_percent(text: str, rate: float) -> None:
    """The planner's own convention against the tables'."""
    target = find_architecture("llama-3.1-8b")
    theirs = pairing(text, rate)
    ours = replace(theirs, target=model_cost(target, "bfloat16", kv_cache(target, 2.0), 1, TARGET_OVERHEAD_SECONDS))
    for batch in BATCHES:
        load = Load(batch, 512)
        assert speed_up(ours, load, 4) == pytest.approx(speed_up(theirs, load, 4), rel=0.05)


def test_verification_is_free_up_to_about_165_tokens_in_flight() -> None:
    assert H200.free_tokens == pytest.approx(165, abs=1)


@pytest.mark.parametrize("batch", [8, 4000])
def test_a_pass_takes_no_longer_over_tokens_behind_every_window(batch: int) -> None:
    """Bound by reading, and by computing."""
    target = find_architecture("mistral-7b")
    cost = model_cost(target, "bfloat16", kv_cache(target, 2.0), 1, TARGET_OVERHEAD_SECONDS)
    below, full, beyond = (pass_seconds(cost, H200, Load(batch, tokens), 5) for tokens in (2048, 4096, 8192))
    assert below < full == beyond


def test_compute_bound_speed_up_tends_to_tokens_per_verified_token() -> None:
    pair = pairing("ngram", 0.8)
    limit = Acceptance(0.8).tokens_per_round(4) / 5
    assert speed_up(pair, Load(100_000, 1), 4) == pytest.approx(limit, rel=0.01)
    assert limit < 1


def test_the_batch_where_it_stops_paying_is_the_first_without_a_gain() -> None:
    pair = pairing("eagle3", 0.75)
    ((first, last),) = paying_batches(pair, 512, 400)
    assert first == 1
    assert speed_up(pair, Load(last, 512), 4) > 1 >= speed_up(pair, Load(last + 1, 512), 4)
    assert 120 <= last <= 130


def test_experts_make_small_batches_dear_and_middling_ones_pay() -> None:
    """A lone sequence of a mixture reads more experts to verify; once nearly all are read anyway, drafts are free."""
    target = find_architecture("qwen3-30b-a3b")
    cost = model_cost(target, "bfloat16", kv_cache(target, 2.0), 1, TARGET_OVERHEAD_SECONDS)
    pair = Pairing(H200, cost, proposer("ngram", "qwen3-30b-a3b"), Acceptance(0.6))
    dense = pairing("ngram", 0.6)

    def verify_factor(p: Pairing, batch: int) -> float:
        load = Load(batch, 512)
        return pass_seconds(p.target, H200, load, 5) / pass_seconds(p.target, H200, load, 1)

    assert verify_factor(dense, 1) == pytest.approx(1.0, abs=0.01)
    assert verify_factor(pair, 1) > 1.5
    assert verify_factor(pair, 32) < verify_factor(pair, 1)


@given(
    batch=st.integers(1, 300),
    context=st.sampled_from((128, 4096, 32768)),
    length=st.integers(1, 8),
    rate=st.floats(0.05, 0.95),
    drafting=st.floats(0.01, 1.0),
)
def test_the_round_trip_and_the_acceptance_named_as_limits_give_exactly_no_gain(
    batch: int, context: int, length: int, rate: float, drafting: float
) -> None:
    pair = replace(pairing(f"eagle3,k={length}", rate), acceptance=Acceptance(rate, drafting_share=drafting))
    load = Load(batch, context)
    cell = predict(pair, load)
    assert cell.longest_round_trip_seconds is not None
    at_limit = with_round_trip(pair, cell.longest_round_trip_seconds)
    assert speed_up(at_limit, load, length) == pytest.approx(1.0)
    if cell.needed_acceptance is not None:
        needed = replace(pair, acceptance=Acceptance(cell.needed_acceptance, drafting_share=drafting))
        assert speed_up(needed, load, length) == pytest.approx(1.0)
        assert (cell.speed_up > 1.0) == (rate > cell.needed_acceptance)
    else:
        assert speed_up(replace(pair, acceptance=Acceptance(1.0)), load, length) < 1.0


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 30), st.integers(0, 300))
def test_where_not_every_round_drafts_it_is_what_comes_of_counting_tokens_and_seconds_round_by_round(
    batch: int, length: int, drafting: int, alone: int
) -> None:
    pair, load = pairing(DRAFT_1B, 0.75, 0.001), Load(batch, 512)
    plain = pass_seconds(pair.target, H200, load, 1)
    tokens = seconds = 0.0
    for drafts in [True] * drafting + [False] * alone:
        tokens += pair.acceptance.tokens_per_round(length) if drafts else 1.0
        seconds += round_seconds(pair, load, length) if drafts else plain
    seldom = replace(pair, acceptance=Acceptance(0.75, drafting_share=drafting / (drafting + alone)))
    assert speed_up(seldom, load, length) == pytest.approx(tokens * plain / seconds)


@given(batch=st.integers(1, 300), rate=st.floats(0.0, 1.0))
def test_the_best_length_beats_every_other(batch: int, rate: float) -> None:
    pair, load = pairing("eagle3", rate), Load(batch, 512)
    best = best_length(pair, load)
    assert speed_up(pair, load, best) >= max(speed_up(pair, load, length) for length in range(9)) - 1e-12


@pytest.mark.parametrize(("rate", "length", "expected"), [(0.6, 4, 1.92), (0.7, 5, 2.35), (0.8, 8, 3.09)])
def test_the_best_length_of_leviathans_formula(rate: float, length: int, expected: float) -> None:
    """Memory bound, c = T_draft/T_target = 0.05: E[τ]/(1 + c·k) peaks there (0.7: 5 and 6 are equal)."""

    def formula(k: int) -> float:
        return Acceptance(rate).tokens_per_round(k) / (1 + 0.05 * k)

    assert formula(length) == pytest.approx(max(map(formula, range(1, 9))), abs=1e-3)
    assert formula(length) == pytest.approx(expected, abs=0.01)


def test_drafting_ahead_hides_its_share_of_drafting_and_network() -> None:
    serial = pairing(DRAFT_1B, 0.75, 0.002)
    spec = serial.proposer.spec
    load = Load(1, 512)
    verify = pass_seconds(serial.target, H200, load, 5)
    hidden = round_seconds(serial, load, 4) - verify
    for share in (0.0, 0.5, 1.0):
        ahead = replace(serial, proposer=replace(serial.proposer, spec=replace(spec, hit_rate=share)))
        assert round_seconds(ahead, load, 4) == pytest.approx(verify + (1 - share) * hidden)
    assert predict(ahead, load).longest_round_trip_seconds is None


def test_time_never_falls_with_more_work() -> None:
    cost = pairing("ngram", 0.5).target
    for smaller, larger in [((1, 512), (2, 512)), ((8, 512), (8, 1024)), ((200, 64), (201, 64))]:
        a, b = (pass_seconds(cost, H200, Load(*sizes), 4) for sizes in (smaller, larger))
        assert a <= b
    assert math.isfinite(a)
