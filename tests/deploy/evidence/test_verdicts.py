import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deploy.evidence.cell_evidence import CellEvidence, Counts, Harm
from deploy.evidence.config import JudgeConfig
from deploy.evidence.guards import GuardState
from deploy.evidence.verdicts import Decision, judge_cells

RULES = JudgeConfig()
NO_HARM = Harm(Counts(0, 64), Counts(0, 64), 0)
DRAWS = np.random.default_rng(9)


def gains(times: float, spread: float = 0.01, rounds: int = 8) -> tuple[float, ...]:
    return tuple((math.log(times) + DRAWS.normal(0, spread, rounds)).tolist())


def cell(**changes: Any) -> CellEvidence:
    calm = CellEvidence(
        objective=gains(1.3),
        ttft=gains(1.0),
        ttft_room=gains(1.2),
        throughput=gains(1.2),
        bad=NO_HARM,
        degenerate=NO_HARM,
        kv_usage=(0.4, 0.5),
        preemptions=(0, 0),
        greedy_equal=Counts(63, 64),
        client_lag_share=0.02,
        has_content=True,
    )
    return replace(calm, **changes)


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
        ({"bad": Harm(Counts(0, 64), Counts(1, 64), 1)}, "errors 0/64 → 1/64"),
        ({"degenerate": Harm(Counts(30, 64), Counts(30, 64), 3)}, "47% of the answers repeat themselves"),
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
        ({"bad": Harm(Counts(0, 64), Counts(20, 64), 6)}, "worse: errors 0/64 → 20/64"),
        ({"degenerate": Harm(Counts(0, 64), Counts(20, 64), 6)}, "worse: repetition 0/64 → 20/64"),
    ],
)
def test_a_guard_that_clearly_fails_drops_even_what_is_faster(changes: dict[str, Any], reason: str) -> None:
    verdict = only(cell(**changes))
    assert verdict.decision is Decision.DROP
    assert reason in verdict.reason


def test_errors_of_one_bad_round_are_no_claim_against_the_candidate() -> None:
    verdict = only(cell(bad=Harm(Counts(0, 64), Counts(8, 64), rounds_worse=1)))
    assert verdict.decision is Decision.INCONCLUSIVE


def test_what_a_server_does_not_tell_withholds_nothing_but_is_said() -> None:
    verdict = only(cell(kv_usage=(None, None), preemptions=(None, None), throughput=(), greedy_equal=None))
    assert verdict.decision is Decision.KEEP
    assert [guard.name for guard in verdict.guards if guard.state is GuardState.UNMEASURED] == ["KV headroom"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"client_lag_share": 0.5}, "client was the bottleneck"), ({"has_content": False}, "no text")],
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


def test_over_many_matrices_without_an_effect_hardly_one_cell_is_decided() -> None:
    decided = matrices = 0
    for seed in range(40):
        cells = [
            cell(
                objective=gains(1.0, 0.05),
                ttft=gains(1.0, 0.1),
                ttft_room=gains(1.0, 0.1),  # on the very edge of what is allowed
                throughput=(),
            )
            for _ in range(6)
        ]
        verdicts = judge_cells(cells, RULES, seed)
        matrices += any(verdict.decision is not Decision.INCONCLUSIVE for verdict in verdicts)
        decided += sum(verdict.decision is not Decision.INCONCLUSIVE for verdict in verdicts)
    # Two families of claims at 5 % each: 4 of 40 matrices are expected at most, so 10 would be three deviations off.
    assert matrices <= 9
    assert decided / (40 * 6) <= 0.05
