from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.evidence.assess import RunFacts, assess
from deploy.evidence.buckets import bucket_name, in_order, shared_bucket
from deploy.evidence.config import MatrixConfig
from deploy.evidence.matrix import Inputs, levels
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, ServerFigures
from deploy.evidence.result import CellResult, MatrixResult
from deploy.evidence.samples import Sample, Samples
from deploy.evidence.verdicts import Decision
from fleet.traffic import Outcome
from tests.deploy.evidence.bench import cell_of, config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

SHORT, LONG = "prompt ≤256, output ≤32", "prompt ≤1024, output ≤32"
TWO_LENGTHS = Samples(
    tuple(
        Sample(f"p{number}", "chat", ({"role": "user", "content": "why " * (3 + 297 * (number % 2))},))
        for number in range(24)
    )
)


def decisions(cell: CellResult) -> dict[str, Decision]:
    return {name: verdict.decision for name, verdict in cell.bucket_verdicts().items()}


# --- which bucket


def request(**changes: object) -> MeasuredRequest:
    whole = MeasuredRequest(
        index=0,
        category="chat",
        outcome=Outcome.DONE,
        send_delay=0.0,
        chunks=((0.03, 1), (0.25, 11)),
        prompt_tokens=10,
        drafted=0,
        accepted=0,
        rounds_by_accepted=(),
        queue_seconds=None,
        fallbacks=0,
        answer_digest="",
        is_degenerate=False,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn) -> MeasuredRequest:
    chunks = tuple((0.02 * (place + 1), 1) for place in range(draw(st.integers(0, 200))))
    tokens = draw(st.integers(1, 20_000))
    return request(outcome=draw(st.sampled_from(Outcome)), chunks=chunks, prompt_tokens=tokens)


@given(requests(), requests())
def test_both_arms_have_the_same_say_in_the_bucket_of_a_request(one: MeasuredRequest, other: MeasuredRequest) -> None:
    """So that where the arms do not differ, swapping them changes no bucket, and no bucket favours either."""
    assert shared_bucket(one, other) == shared_bucket(other, one)


@given(requests(), requests())
def test_a_request_that_one_arm_failed_is_where_the_other_puts_it(one: MeasuredRequest, other: MeasuredRequest) -> None:
    failed = replace(one, outcome=Outcome.FAILED)
    expected = bucket_name(other.prompt_tokens, other.output_tokens) if other.is_done else None
    assert shared_bucket(failed, other) == shared_bucket(other, failed) == expected


def test_buckets_come_in_the_order_of_their_lengths() -> None:
    names = [bucket_name(prompt, output) for prompt in (20, 300, 3000, 10**6) for output in (1, 100, 400, 10**6)]
    assert in_order(reversed([*names, *names])) == names
    assert in_order(["another report's", names[3]]) == [names[3], "another report's"]


# --- what is claimed of it

Seconds = Callable[[str, int, int], float]
"""(arm, round, index) -> seconds per token."""


def blocks_of(
    config: MatrixConfig, seconds: Seconds, ask: Callable[[str, int], MeasuredRequest]
) -> list[MeasuredBlock]:
    """Answers at the given pace; `ask` gives (arm, index) -> the rest of them."""

    def paced(arm: str, number: int, index: int) -> MeasuredRequest:
        asked = replace(ask(arm, index), index=index)
        more = asked.output_tokens - 1
        chunks = ((0.03, 1), (0.03 + more * seconds(arm, number, index), more)) if asked.is_done else ()
        return replace(asked, chunks=chunks)

    def block(arm: str, number: int) -> MeasuredBlock:
        requests = tuple(paced(arm, number, index) for index in range(config.requests))
        return MeasuredBlock("c1/greedy", number, arm, 1.0, 1.0, 100, 4, 0.0, ServerFigures(), requests)

    return [block(arm, number) for number in range(config.rounds) for arm in ("baseline", "speculative")]


def greedy(**changes: object) -> MatrixConfig:
    return config_of(**{"load": {"concurrency": [1]}, "sampling": {"greedy": {"temperature": 0}}, **changes})


def assessed(config: MatrixConfig, blocks: Sequence[MeasuredBlock]) -> MatrixResult:
    facts = RunFacts(0.0, "simulated", has_content=True, levels=levels(config), throughput_by_concurrency={})
    return assess(config, facts, blocks)


def of_two_lengths(_arm: str, index: int) -> MeasuredRequest:
    return request(prompt_tokens=(10, 300)[index % 2])


def noisy(factor: Callable[[str, int], float], seed: int = 1) -> Seconds:
    draws = np.random.default_rng(seed)
    return lambda arm, _, index: 0.02 * factor(arm, index) * float(draws.lognormal(0.0, 0.01))


def test_what_pays_for_short_prompts_and_costs_for_long_ones_is_said_of_each_though_the_cell_shows_neither() -> None:
    config = greedy(rounds=10)
    factor = {("speculative", 0): 0.8, ("speculative", 1): 1.25}
    result = assessed(config, blocks_of(config, noisy(lambda arm, i: factor.get((arm, i % 2), 1.0)), of_two_lengths))
    (cell,) = result.cells
    assert cell.verdict.decision is Decision.INCONCLUSIVE
    assert decisions(cell) == {SHORT: Decision.KEEP, LONG: Decision.DROP}
    assert f"greedy at 1 open pays for ({SHORT}), costs for ({LONG})." in result.recommendation
    assert result.recommendation.endswith("measure the lengths for which it pays by themselves.")
    assert {part.kind: part.verdict for part in cell.slices}["category"] is None


def test_a_candidate_that_fails_the_long_ones_looks_good_by_none_of_those_that_it_answers() -> None:
    """Two of its four long answers a round fail, and those that are left are fast."""

    def ask(arm: str, index: int) -> MeasuredRequest:
        is_lost = arm == "speculative" and index % 4 == 1
        return replace(of_two_lengths(arm, index), outcome=Outcome.TIMED_OUT if is_lost else Outcome.DONE)

    config = greedy(rounds=10, requests=8)
    (cell,) = assessed(config, blocks_of(config, noisy(lambda arm, _: 0.7 if arm == "speculative" else 1.0), ask)).cells
    assert decisions(cell) == {SHORT: Decision.KEEP, LONG: Decision.DROP}
    assert "errors 0/40 → 20/40" in cell.bucket_verdicts()[LONG].reason


def test_the_only_bucket_of_a_cell_is_the_cell() -> None:
    config = greedy(rounds=6)
    blocks = blocks_of(config, noisy(lambda arm, _: 0.8 if arm == "speculative" else 1.0), lambda *_: request())
    (cell,) = assessed(config, blocks).cells
    assert cell.bucket_verdicts() == {SHORT: cell.verdict}
    assert cell.verdict.decision is Decision.KEEP


@settings(max_examples=12)
@given(st.lists(st.sampled_from([10, 300, 2000, 30_000]), min_size=4, max_size=4), st.sampled_from([0.8, 1.0, 1.2]))
def test_buckets_change_nothing_of_what_is_said_of_the_cells(lengths: Sequence[int], factor: float) -> None:
    config = greedy(rounds=6)
    pace = noisy(lambda arm, _: factor if arm == "speculative" else 1.0)
    blocks = blocks_of(config, pace, lambda _, index: request(prompt_tokens=lengths[index]))
    whole = [
        replace(block, requests=tuple(replace(item, prompt_tokens=10) for item in block.requests)) for block in blocks
    ]
    (split,), (one,) = assessed(config, blocks).cells, assessed(config, whole).cells
    assert len(split.bucket_verdicts()) == len(set(lengths))
    assert split.verdict == one.verdict


def test_a_bucket_that_came_in_few_rounds_says_how_many_rounds_would_tell() -> None:
    config = greedy(rounds=8)
    blocks = [
        replace(block, requests=(replace(block.requests[0], prompt_tokens=300), *block.requests[1:]))
        if block.round < 3
        else block
        for block in blocks_of(config, noisy(lambda arm, _: 0.7 if arm == "speculative" else 1.0), lambda *_: request())
    ]
    (cell,) = assessed(config, blocks).cells
    rare = cell.bucket_verdicts()[LONG]
    assert rare.decision is Decision.INCONCLUSIVE
    assert rare.reason.startswith("3 of 8 rounds have such a request")
    assert f"about {math.ceil(5 * 8 / 3)} would have so many" in rare.reason
    assert cell.bucket_verdicts()[SHORT].decision is Decision.KEEP


def test_before_the_last_round_no_bucket_is_kept_or_dropped() -> None:
    config = greedy(rounds=10)
    factor = {("speculative", 0): 0.8, ("speculative", 1): 1.25}
    blocks = blocks_of(config, noisy(lambda arm, i: factor.get((arm, i % 2), 1.0)), of_two_lengths)
    (cell,) = assessed(config, blocks[: 2 * 8]).cells
    assert set(decisions(cell).values()) == {Decision.INCONCLUSIVE}
    assert "it would be keep" in cell.bucket_verdicts()[SHORT].reason


def test_a_cell_that_is_refused_has_refused_buckets() -> None:
    config = greedy(rounds=6)
    blocks = blocks_of(config, noisy(lambda *_: 1.0), of_two_lengths)
    slow_client = [replace(block, client_lag=0.01) for block in blocks]
    (cell,) = assessed(config, slow_client).cells
    assert cell.verdict.decision is Decision.REFUSED
    assert set(decisions(cell).values()) == {Decision.REFUSED}


def test_a_matrix_judged_by_throughput_judges_its_buckets_by_the_time_per_token() -> None:
    config = greedy(rounds=10, judge={"objective": "throughput"})
    blocks = blocks_of(config, noisy(lambda arm, i: 0.8 if (arm, i % 2) == ("speculative", 0) else 1.0), of_two_lengths)
    (cell,) = assessed(config, blocks).cells
    assert cell.verdict.decision is Decision.INCONCLUSIVE  # the blocks brought the same number of tokens
    assert decisions(cell) == {SHORT: Decision.KEEP, LONG: Decision.INCONCLUSIVE}


# --- on a simulated fleet


def measured(config: MatrixConfig, seed: int, file: Path, **paths: SimulatedPath) -> MatrixResult:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, seed, **paths)
    return measure(config, fleet, clock, open_file(config, file, TWO_LENGTHS), inputs=Inputs(TWO_LENGTHS))


@pytest.mark.parametrize(("factor", "decision"), [(1.10, Decision.DROP), (0.90, Decision.KEEP)])
def test_a_planted_effect_is_found_in_its_bucket_and_nowhere_else(
    tmp_path: Path, factor: float, decision: Decision
) -> None:
    config = config_of(load={"concurrency": [1]}, rounds=8, workload={"max_tokens": 10})
    planted = SimulatedPath(
        noise=0.02, by_prompt=lambda temperature, tokens: factor if temperature == 0 and tokens > 256 else 1.0
    )
    result = measured(config, 7, tmp_path / "run.jsonl", baseline=SimulatedPath(noise=0.02), speculative=planted)
    found = {cell.condition: decisions(cell) for cell in result.cells}
    assert found["c1/greedy"].pop(LONG) is decision, cell_of(result, "c1/greedy").bucket_verdicts()
    assert {item for buckets in found.values() for item in buckets.values()} == {Decision.INCONCLUSIVE}


def decided_matrices(folder: Path, seeds: Sequence[int]) -> int:
    """Of A/A matrices, how many keep or drop a bucket."""
    wrong = 0
    for seed in seeds:
        config = config_of(
            candidates=["baseline"],
            seed=seed,
            rounds=6,
            requests=4,
            load={"concurrency": [2]},
            workload={"max_tokens": 5},
        )
        result = measured(config, seed, folder / f"{seed}.jsonl", baseline=SimulatedPath(noise=0.08))
        found = [item for cell in result.cells for item in decisions(cell).values()]
        assert len(found) == 4
        wrong += any(item is not Decision.INCONCLUSIVE for item in found)
    return wrong


def test_of_equal_arms_no_bucket_is_kept_or_dropped(tmp_path: Path) -> None:
    assert decided_matrices(tmp_path, range(2)) == 0


@pytest.mark.patient
def test_of_many_a_a_matrices_at_most_one_in_twenty_decides_on_any_bucket(tmp_path: Path) -> None:
    assert decided_matrices(tmp_path, range(200, 240)) <= 2


@pytest.mark.patient
def test_of_equal_arms_that_draw_their_answers_anew_at_most_one_matrix_in_twenty_decides_on_any_bucket() -> None:
    """Paces with a long tail, blocks that share a hiccup, failures, and answers that go in circles and become long."""
    wrong = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        hiccups: dict[tuple[str, int], float] = {}

        def ask(_: str, index: int, draws: np.random.Generator = draws) -> MeasuredRequest:
            is_circling = draws.random() < 0.4
            tokens = 100 if is_circling else int(draws.integers(8, 34))
            outcome = Outcome.FAILED if draws.random() < 0.05 else Outcome.DONE
            chunks = ((0.0, tokens),)
            prompt = (10, 300)[index % 2]
            return request(prompt_tokens=prompt, chunks=chunks, outcome=outcome, is_degenerate=is_circling)

        def pace(
            arm: str,
            number: int,
            _: int,
            draws: np.random.Generator = draws,
            hiccups: dict[tuple[str, int], float] = hiccups,
        ) -> float:
            shared = hiccups.setdefault((arm, number), float(draws.lognormal(0.0, 0.05)))
            return 0.02 * shared * (1 + float(draws.exponential(0.3)))

        config = config_of(load={"concurrency": [1]}, sampling={"greedy": {"temperature": 0.8}}, rounds=12, requests=8)
        (cell,) = assessed(config, blocks_of(config, pace, ask)).cells
        assert len(decisions(cell)) == 4
        wrong += any(item is not Decision.INCONCLUSIVE for item in decisions(cell).values())
    assert wrong <= 3
