import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deploy.evidence.cell_evidence import CellEvidence, Counts, Harm
from deploy.evidence.config import JudgeConfig
from deploy.evidence.guards import GuardState
from deploy.evidence.verdicts import Decision, judge_cells, provisional

RULES = JudgeConfig()
NO_HARM = Harm(Counts(0, 64), Counts(0, 64), (0,) * 8)
DRAWS = np.random.default_rng(9)


def gains(times: float, spread: float = 0.01, rounds: int = 8) -> tuple[float, ...]:
    return tuple((math.log(times) + DRAWS.normal(0, spread, rounds)).tolist())


def cell(**changes: Any) -> CellEvidence:
    calm = CellEvidence(
        rounds=8,
        objective=gains(1.3),
        ttft=gains(1.0),
        ttft_room=gains(1.2),
        throughput=gains(1.2),
        bad=NO_HARM,
        fallbacks=(0, 0),
        degenerate=NO_HARM,
        kv_usage=(0.4, 0.5),
        preemptions=(0, 0),
        greedy_equal=Counts(63, 64),
        client_lag_share=0.02,
        has_content=True,
        remembers=False,
    )
    return replace(calm, **changes)


def harm(*by_round: int) -> Harm:
    """What happened to the candidate alone, of eight requests in each round."""
    return Harm(Counts(0, 8 * len(by_round)), Counts(sum(by_round), 8 * len(by_round)), by_round)


def only(evidence: CellEvidence, rules: JudgeConfig = RULES) -> Any:
    (verdict,) = judge_cells([evidence], rules, seed=0)
    return verdict


def test_a_clear_gain_without_harm_is_kept() -> None:
    verdict = only(cell())
    assert verdict.decision is Decision.KEEP
    assert verdict.gain.low > 1.25
    assert {guard.state for guard in verdict.guards} == {GuardState.HOLDS}


def test_a_clear_loss_is_dropped() -> None:
    verdict = only(cell(objective=gains(0.92)))
    assert verdict.decision is Decision.DROP
    assert "slower: 0.92×" in verdict.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"objective": gains(1.03, 0.003)}, "a gain above 5% is not in sight"),
        ({"objective": gains(1.12, 0.1)}, "if it stays like this, about"),
        ({"objective": gains(1.3, rounds=4)}, "less than 5 rounds are too few"),
        ({"ttft_room": gains(1.0, 0.3)}, "not shown to be harmless: TTFT"),
        ({"throughput": gains(0.97, 0.1)}, "not shown to be harmless: throughput"),
        ({"bad": harm(0, 0, 0, 1, 0, 0, 0, 0)}, "errors 0/64 → 1/64"),
        (
            {"degenerate": Harm(Counts(30, 64), Counts(30, 64), (1, -1, 0, 2, -2, 0, 0, 0))},
            "47% of the answers repeat themselves",
        ),
        ({"preemptions": (0, 3)}, "preemptions 0 → 3"),
        ({"kv_usage": (0.6, 0.99)}, "60% → 99% full"),
        ({"greedy_equal": Counts(10, 64)}, "10 of 64 greedy answers"),
    ],
)
def test_a_gain_that_is_small_unsure_or_not_shown_to_be_harmless_is_inconclusive(
    changes: dict[str, Any], reason: str
) -> None:
    verdict = only(cell(**changes))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ttft": gains(0.5), "ttft_room": gains(0.6)}, "worse: TTFT +"),
        ({"throughput": gains(0.8)}, "worse: throughput -20%"),
        ({"bad": harm(3, 3, 2, 1, 2, 3, 3, 3)}, "worse: errors 0/64 → 20/64"),
        ({"degenerate": harm(3, 3, 2, 1, 2, 3, 3, 3)}, "worse: repetition 0/64 → 20/64"),
    ],
)
def test_a_guard_that_clearly_fails_drops_even_what_is_faster(changes: dict[str, Any], reason: str) -> None:
    verdict = only(cell(**changes))
    assert verdict.decision is Decision.DROP
    assert reason in verdict.reason


@pytest.mark.parametrize("hiccups", [(8,), (8, 8), (8, 8, 8, 8)])
def test_a_few_bad_rounds_are_no_claim_against_the_candidate_however_many_requests_failed_in_them(
    hiccups: tuple[int, ...],
) -> None:
    """Two hiccups of the machine that both fell into the candidate's blocks: Fisher's test would say p < 0.00001."""
    verdict = only(cell(bad=harm(*hiccups, *(0,) * (8 - len(hiccups)))))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "not shown to be harmless: errors 0/64" in verdict.reason


def test_what_a_server_does_not_tell_withholds_nothing_but_is_said() -> None:
    verdict = only(cell(kv_usage=(None, None), preemptions=(None, None), throughput=None, greedy_equal=None))
    assert verdict.decision is Decision.KEEP
    assert [guard.name for guard in verdict.guards if guard.state is GuardState.UNMEASURED] == ["KV headroom"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client_lag_share": 0.5}, "client was the bottleneck"),
        ({"has_content": False}, "no text"),
        ({"remembers": True}, "suffix_decoding_max_cached_requests: 0"),
    ],
)
def test_what_did_not_measure_the_server_is_refused_and_makes_no_claim(changes: dict[str, Any], reason: str) -> None:
    verdict = only(cell(**changes))
    assert verdict.decision is Decision.REFUSED
    assert reason in verdict.reason
    assert verdict.p_better is None


def test_a_refused_cell_costs_the_others_nothing() -> None:
    alone = only(cell())
    beside, *_ = judge_cells([cell(objective=alone_gains), *[cell(has_content=False)] * 20], RULES, seed=0)
    first = only(cell(objective=alone_gains))
    assert beside.p_better == first.p_better
    assert alone.decision is beside.decision is Decision.KEEP


alone_gains = gains(1.2, 0.05)


def test_more_cells_ask_more_of_each() -> None:
    evidence = cell(objective=alone_gains)
    alone = only(evidence).p_better
    among = judge_cells([evidence, *(cell(objective=gains(1.0)) for _ in range(9))], RULES, seed=0)[0].p_better
    assert alone is not None
    assert among is not None
    assert among > alone


def test_what_is_not_known_of_the_first_token_is_not_shown_to_be_harmless() -> None:
    verdict = only(cell(ttft=(), ttft_room=()))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "not shown to be harmless: TTFT: too few rounds" in verdict.reason


def test_what_is_not_judged_of_one_cell_takes_no_power_from_the_claims_about_others() -> None:
    """Two claims of worse speed in an open loop, three in a closed one: Holm's factor is their number."""
    slower = gains(0.97, 0.02)
    alone, beside_open, beside_closed = (
        judge_cells([cell(objective=slower, throughput=None), *others], RULES, seed=0)[0].p_worse
        for others in ([], [cell(throughput=None)], [cell()])
    )
    assert alone is not None
    assert beside_open == pytest.approx(alone * 4 / 2)
    assert beside_closed == pytest.approx(alone * 5 / 2)


def test_each_cell_is_given_its_own_corrected_p_value() -> None:
    worse = [gains(0.95, 0.02), gains(0.98, 0.03), gains(1.0, 0.02)]
    evidence = [cell(objective=worse[0], throughput=None), cell(objective=worse[1]), cell(objective=worse[2])]
    together = judge_cells(evidence, RULES, seed=0)
    turned = judge_cells(evidence[::-1], RULES, seed=0)
    assert [verdict.p_worse for verdict in together] == [verdict.p_worse for verdict in turned[::-1]]


def test_a_verdict_before_the_last_round_is_provisional() -> None:
    kept, dropped = only(cell()), only(cell(objective=gains(0.9)))
    for verdict, word in ((kept, "keep, faster"), (dropped, "drop, slower")):
        early = provisional(verdict, 6, 10)
        assert early.decision is Decision.INCONCLUSIVE
        assert early.reason.startswith(f"provisional after 6 of 10 rounds; it would be {word}")
        assert early.gain == verdict.gain
    for verdict in (only(cell(has_content=False)), only(cell(objective=gains(1.0)))):
        assert provisional(verdict, 6, 10) == verdict


@pytest.mark.parametrize("cells", [1, 12, 24])
def test_however_many_cells_there_are_a_clear_loss_in_one_of_them_is_dropped(cells: int) -> None:
    calm = cell(objective=gains(1.0), ttft=(), throughput=None)
    verdicts = judge_cells([cell(objective=gains(0.8, 0.01, rounds=10)), *[calm] * (cells - 1)], RULES, seed=0)
    assert verdicts[0].decision is Decision.DROP
    assert verdicts[0].p_worse is not None
    assert verdicts[0].p_worse <= RULES.alpha


# --- the promise: the chance of any false keep or drop in a matrix is at most alpha

HOW_MANY = pytest.mark.parametrize(("matrices", "most"), [(8, 2), pytest.param(60, 8, marks=pytest.mark.patient)])
"""At 5 % of the matrices more than `most` are wrong in less than 1 of 100 such tests."""

Draw = Callable[[float, float], tuple[float, ...]]


def wrong_matrices(decision: Decision, draw_cell: Callable[[Draw], CellEvidence], matrices: int, cells: int) -> int:
    """How many matrices have a cell with a decision that is false for every one of their cells."""
    draws = np.random.default_rng(20)

    def gain(mean: float, spread: float) -> tuple[float, ...]:
        return tuple(draws.normal(mean, spread, 8).tolist())

    verdicts = (judge_cells([draw_cell(gain) for _ in range(cells)], RULES, seed) for seed in range(matrices))
    return sum(any(verdict.decision is decision for verdict in matrix) for matrix in verdicts)


EDGES: list[tuple[Decision, Callable[[Draw], CellEvidence]]] = [
    # Truly faster, with a first token that is as late as just is not allowed any more: to keep any is false.
    (Decision.KEEP, lambda gain: cell(ttft_room=gain(0.0, 0.1), ttft=(), throughput=None)),
    # Truly faster, with a throughput on the edge.
    (Decision.KEEP, lambda gain: cell(throughput=gain(math.log(0.95), 0.05), ttft=())),
    # Faster by just what does not count yet, all else fine.
    (Decision.KEEP, lambda gain: cell(objective=gain(math.log(1.05), 0.05), ttft=(), throughput=None)),
    # No worse in anything, on the edge of everything.
    (
        Decision.DROP,
        lambda gain: cell(
            objective=gain(0.0, 0.05), ttft=(), ttft_room=gain(0.0, 0.1), throughput=gain(math.log(0.95), 0.05)
        ),
    ),
]


@HOW_MANY
@pytest.mark.parametrize(("decision", "draw_cell"), EDGES)
def test_of_many_matrices_on_the_edge_of_a_claim_no_more_make_a_false_one_than_promised(
    decision: Decision, draw_cell: Callable[[Draw], CellEvidence], matrices: int, most: int
) -> None:
    assert wrong_matrices(decision, draw_cell, matrices, cells=12) <= most


@HOW_MANY
def test_of_many_matrices_with_mishaps_that_strike_either_arm_no_more_drop_a_cell_than_promised(
    matrices: int, most: int
) -> None:
    draws = np.random.default_rng(21)

    def draw_cell(gain: Draw) -> CellEvidence:
        struck = draws.random(8) < 0.7
        by_round = np.where(struck, draws.integers(1, 9, 8), 0) * draws.choice([-1, 1], 8)
        bad = Harm(
            Counts(int(-by_round[by_round < 0].sum()), 64),
            Counts(int(by_round[by_round > 0].sum()), 64),
            tuple(by_round.tolist()),
        )
        return cell(bad=bad)

    assert wrong_matrices(Decision.DROP, draw_cell, matrices, cells=3) <= most
