import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.drift import psi
from canary.plan import read_plan
from deploy.evidence.capture.reservoir import CapturedRequest, Reservoirs
from deploy.evidence.config import MatrixConfig, parse_matrix
from deploy.evidence.matrix import Block, Condition, Inputs, LoadLevel, arms, lay_out, levels, schedule
from deploy.evidence.samples import Sample, Samples, load_samples
from deploy.evidence.traces import Trace, TraceRow
from fleet.config import load_yaml
from fleet.errors import ConfigError
from tests.deploy.evidence.bench import config_of

INPUTS = Inputs(load_samples(None))
MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"


def block(level: LoadLevel, number: int = 0, sampling: str = "greedy") -> Block:
    return Block(Condition(level, sampling), number, arms(config_of())[0])


def test_arms_take_turns_and_every_round_covers_all_conditions() -> None:
    config = config_of(candidates=["speculative", "ngram"], rounds=2, load={"concurrency": [1, 4]})
    blocks = list(schedule(config, levels(config)))
    assert len(blocks) == 2 * 2 * 2 * 3
    by_round = [[item for item in blocks if item.round == number] for number in (0, 1)]
    assert blocks == by_round[0] + by_round[1]
    for number, order in enumerate((["baseline", "speculative", "ngram"], ["ngram", "speculative", "baseline"])):
        for start in range(0, 12, 3):
            turn = by_round[number][start : start + 3]
            assert [item.arm.name for item in turn] == order
            assert len({item.condition for item in turn}) == 1


def test_every_prompt_is_measured_once_before_any_is_measured_again() -> None:
    config = config_of(requests=6, load={"concurrency": [1]})
    seen = []
    for number in range(20):
        plan = lay_out(config, INPUTS, block(LoadLevel("c1", concurrency=1), number))
        seen += [question.messages[0]["content"] for question in plan.questions[plan.warm_up :][: plan.measured]]
    assert len(seen) == len(INPUTS.samples.items) == len(set(seen))


def asked(config: MatrixConfig, samples: Samples, sampling: str = "greedy") -> Counter[str]:
    """How often each sample is measured in the whole run, by its only message."""
    counts: Counter[str] = Counter()
    for number in range(config.rounds):
        plan = lay_out(config, Inputs(samples), block(LoadLevel("c1", concurrency=1), number, sampling))
        counts.update(question.messages[0]["content"] for question in plan.questions[plan.warm_up :][: plan.measured])
    return counts


def sample(name: str, weight: float = 1.0, *, is_greedy: bool | None = None) -> Sample:
    return Sample(name, name[0], ({"role": "user", "content": name},), weight=weight, is_greedy=is_greedy)


@given(st.lists(st.floats(0.05, 20.0), min_size=1, max_size=12), st.integers(0, 99))
def test_every_prompt_is_asked_as_often_as_its_weight_says(weights: list[float], seed: int) -> None:
    config = config_of(requests=7, rounds=20, seed=seed)
    counts = asked(config, Samples(tuple(sample(f"p{n}", weight) for n, weight in enumerate(weights))))
    for number, weight in enumerate(weights):
        # A prompt is within one of its share of the line; where the line ends depends on all of them.
        slack = 1 + len(weights) * weight / sum(weights)
        assert abs(counts[f"p{number}"] - 140 * weight / sum(weights)) <= slack


def test_captured_traffic_is_measured_in_the_mix_in_which_it_came() -> None:
    came = random.Random(3).choices("ab", (95, 5), k=5000)
    reservoirs = Reservoirs(50, random.Random(4))
    for number, kind in enumerate(came):
        reservoirs.offer(CapturedRequest(f"{kind}{number}", kind, [], None, {}, True, 0.0, 1, 1))
    samples = Samples(tuple(sample(item.id, item.weight) for item in reservoirs.requests()))
    assert Counter(item.category for item in samples.items) == {"a": 50, "b": 50}
    counts = asked(config_of(requests=10, rounds=10), samples)
    kinds = Counter(name[0] for name in counts.elements())
    assert psi(kinds, Counter(came)) < 0.01
    assert len([name for name in counts if name[0] == "a"]) == 50, "all that were kept are asked"


def test_a_sampling_mode_is_measured_with_the_requests_that_were_made_so_where_there_are_any() -> None:
    short, long = sample("short", is_greedy=True), sample("long", is_greedy=False)
    config = config_of(requests=2, rounds=3)
    assert asked(config, Samples((short, long)), "greedy") == {"short": 6}
    assert asked(config, Samples((short, long)), "sampled") == {"long": 6}
    assert asked(config, Samples((short, sample("any"))), "sampled") == {"any": 6}
    assert asked(config, Samples((short,)), "sampled") == {"short": 6}


def test_what_is_measured_is_the_same_at_every_load_and_in_every_sampling_mode() -> None:
    config = config_of(requests=8)
    plans = [
        lay_out(config, INPUTS, block(level, 3, sampling))
        for level in (
            LoadLevel("c1", concurrency=1),
            LoadLevel("c8", concurrency=8),
            LoadLevel("r2", rate_per_second=2.0),
        )
        for sampling in ("greedy", "sampled")
    ]
    measured = [
        [(question.messages, question.seed) for question in plan.questions[plan.warm_up :][: plan.measured]]
        for plan in plans
    ]
    assert all(part == measured[0] for part in measured)


def test_no_seed_is_used_twice() -> None:
    config = config_of(requests=6)
    seeds = [
        question.seed
        for number in range(5)
        for question in lay_out(config, INPUTS, block(LoadLevel("c4", concurrency=4), number)).questions
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_closed_loop_measures_at_least_as_many_requests_as_it_holds_open() -> None:
    plan = lay_out(config_of(requests=2), INPUTS, block(LoadLevel("c16", concurrency=16)))
    assert (plan.warm_up, plan.measured, plan.most_open, plan.due) == (16, 16, 16, None)


def test_an_open_loop_has_an_arrival_for_every_question() -> None:
    config = config_of(load={"rate": [4.0], "max_open": 9})
    plan = lay_out(config, INPUTS, block(LoadLevel("r4", rate_per_second=4.0)))
    assert plan.due is not None
    assert len(plan.due) == len(plan.questions)
    assert list(plan.due) == sorted(plan.due)
    assert plan.most_open == 9


def test_a_trace_lends_its_arrivals(tmp_path: Path) -> None:
    trace = Trace(tuple(TraceRow(float(second), 10, 10) for second in range(5)))
    file = tmp_path / "trace.csv"
    config = config_of(load={"trace": str(file), "time_scale": 0.5})
    (level,) = levels(config)
    plan = lay_out(config, Inputs(INPUTS.samples, trace), block(level))
    assert plan.due is not None
    assert [after - before for before, after in zip(plan.due, plan.due[1:], strict=False)] == pytest.approx(
        [0.5] * (len(plan.due) - 1)
    )


def test_a_request_keeps_its_own_lower_limit_and_the_sampling_of_the_mode(tmp_path: Path) -> None:
    file = tmp_path / "captured.jsonl"
    file.write_text('{"id": "r", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}\n')
    config = config_of(sampling={"warm": {"temperature": 0.7, "top_p": 0.9}})
    level = LoadLevel("c1", concurrency=1)
    plan = lay_out(config, Inputs(load_samples(file)), block(level, sampling="warm"))
    body = plan.questions[0].body("m")
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (5, 0.7, 0.9)


def test_a_category_that_no_prompt_has_is_refused() -> None:
    config = config_of(workload={"categories": ["poetry"]})
    with pytest.raises(ConfigError, match="no prompt is of the categories poetry"):
        lay_out(config, INPUTS, block(LoadLevel("c1", concurrency=1)))


def test_a_rate_alone_asks_for_no_closed_loop_and_nothing_asks_to_find_it() -> None:
    assert [level.name for level in levels(config_of(load={"rate": [1.5, 3]}))] == ["r1.5", "r3"]
    assert config_of(load={}).load.closed == "auto"
    with pytest.raises(ConfigError, match="give a concurrency, a rate or a trace"):
        config_of(load={"concurrency": []})


@pytest.mark.parametrize(
    ("name", "fleet", "loads"),
    [
        ("matrix.yaml", "fleet.yaml", 3),
        ("proposers-matrix.yaml", "proposers.yaml", 3),
        ("copying-matrix.yaml", "proposers.yaml", 1),
    ],
)
def test_the_shipped_matrices_are_valid_and_name_paths_of_their_fleets(name: str, fleet: str, loads: int) -> None:
    file = MANIFESTS / name
    config = parse_matrix(load_yaml(file), str(file))
    assert {config.baseline, *config.candidates} <= set(load_yaml(MANIFESTS / fleet)["paths"])
    assert len(levels(config)) == loads


def test_the_copying_prompts_are_there_and_the_plan_that_rests_on_them_is_valid() -> None:
    config = parse_matrix(load_yaml(MANIFESTS / "copying-matrix.yaml"), "copying-matrix.yaml")
    assert config.workload.prompts is not None
    assert len(load_samples(MANIFESTS.parents[1] / config.workload.prompts).items) == 33
    values = {**load_yaml(MANIFESTS / "copying-plan.yaml")}
    assert values.pop("speculate") == "where_it_wins"
    assert (MANIFESTS / values.pop("evidence")).resolve() == (MANIFESTS / "../../copying").resolve()
    plan = read_plan(values)
    assert (plan.stable, plan.canary) == (config.baseline, *config.candidates)
