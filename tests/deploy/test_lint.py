"""Typos in a fleet config are errors that name the key."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from deploy.lint import known_part, lint_fleet, require_clean, require_plan
from fleet.config import FleetConfig, load_yaml
from fleet.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "deploy" / "manifests"


@pytest.fixture
def fleet() -> dict[str, Any]:
    return copy.deepcopy(dict(load_yaml(SHIPPED / "fleet.yaml")))


def test_the_shipped_config_is_clean(fleet: dict[str, Any]) -> None:
    assert lint_fleet(fleet) == []


def test_a_typo_in_a_fleet_config_is_named_with_the_nearest_key(fleet: dict[str, Any]) -> None:
    fleet["paths"]["speculative"]["speculative"]["num_speculative_token"] = 3
    fleet["engin"] = {}
    assert lint_fleet(fleet) == [
        "paths.speculative.speculative.num_speculative_token: unknown key; did you mean 'num_speculative_tokens'?",
        "engin: unknown key; did you mean 'engine'?",
    ]


def test_a_value_out_of_bounds_is_named_with_its_place(fleet: dict[str, Any]) -> None:
    fleet["engine"]["max_num_seqs"] = 0
    assert lint_fleet(fleet) == ["engine.max_num_seqs: Input should be greater than or equal to 1"]


def test_everything_that_is_wrong_is_told_in_one_go(fleet: dict[str, Any]) -> None:
    fleet["engin"] = {}
    fleet["paths"]["speculative"]["replica"] = 2
    fleet["engine"]["max_num_seqs"] = 0
    fleet["port"] = "here"
    assert sorted(problem.partition(":")[0] for problem in lint_fleet(fleet)) == [
        "engin",
        "engine.max_num_seqs",
        "paths.speculative.replica",
        "port",
    ]


def test_an_unknown_key_hides_no_check_of_the_whole(fleet: dict[str, Any]) -> None:
    fleet["engin"] = {}
    fleet["stable"] = "nowhere"
    unknown, whole = lint_fleet(fleet)
    assert unknown.startswith("engin: unknown key")
    assert "stable 'nowhere' is not one of the paths" in whole
    fleet["stable"] = "baseline"
    fleet["paths"]["speculative"]["draft"] = {"num_cpus": 0, "num_gpu": 1}
    assert [problem.partition(":")[0] for problem in lint_fleet(fleet)] == [
        "paths.speculative.draft.num_gpu",
        "engin",
        "paths.speculative",
    ]


def test_what_is_known_is_kept_whole(fleet: dict[str, Any]) -> None:
    assert known_part(fleet, FleetConfig) == fleet


def test_a_draft_worker_without_any_resource_cannot_be_placed(fleet: dict[str, Any]) -> None:
    fleet["paths"]["speculative"]["draft"] = {"num_cpus": 0}
    (problem,) = lint_fleet(fleet)
    assert problem.startswith("paths.speculative: ")


def test_a_plan_given_as_a_fleet_is_called_what_it_is() -> None:
    (problem,) = lint_fleet(load_yaml(SHIPPED / "plan.yaml"))
    assert problem.startswith("this is the plan of a rollout")


@pytest.mark.parametrize("name", ["fleet.yaml", "serve.yaml", "drill.yaml", "proposers.yaml"])
def test_a_fleet_given_as_a_plan_is_called_what_it_is(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} describes a fleet, not a rollout"):
        require_plan(SHIPPED / name, load_yaml(SHIPPED / name))


@pytest.mark.parametrize("value", [dict(load_yaml(SHIPPED / "plan.yaml")), {}, {"stable": "baseline"}])
def test_what_may_be_a_plan_is_left_to_the_plans_own_checks(value: dict[str, Any]) -> None:
    require_plan(Path("plan.yaml"), value)


def test_every_problem_is_in_the_one_line_that_is_raised() -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml: a; b$"):
        require_clean(Path("f.yaml"), ["a", "b"])
