"""Typos in a Serve config are errors that name the key; Serve itself ignores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.manifest import build_manifest
from fleet.config import load_fleet_config, load_yaml

# Ray's own schema uses what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
SHIPPED = Path(__file__).parents[2] / "deploy" / "manifests"


@pytest.fixture
def serve() -> dict[str, Any]:
    return build_manifest(load_fleet_config(SHIPPED / "fleet.yaml"))


def path_app(serve: dict[str, Any]) -> dict[str, Any]:
    return next(item for item in serve["applications"] if item["name"] == "path-speculative")


def lint_serve(value: dict[str, Any]) -> list[str]:
    from deploy.serve_lint import lint_serve as lint  # imported here so that the mark covers Ray's warnings

    return lint(value)


def test_the_shipped_config_is_clean(serve: dict[str, Any]) -> None:
    assert lint_serve(serve) == []
    assert lint_serve(dict(load_yaml(SHIPPED / "serve.yaml"))) == []


@pytest.mark.parametrize(
    ("place", "typo", "meant"),
    [
        ((), "http_option", "http_options"),
        (("http_options",), "prt", "port"),
        (("applications", 2), "arg", "args"),
        (("applications", 2, "deployments", 0), "max_ongoing_request", "max_ongoing_requests"),
        (("applications", 2, "deployments", 0, "ray_actor_options"), "num_gpu", "num_gpus"),
        (("applications", 2, "args"), "speculativ", "speculative"),
        (("applications", 2, "args", "engine"), "thread", "threads"),
    ],
)
def test_a_typo_at_any_level_of_a_serve_config_is_named(
    serve: dict[str, Any], place: tuple[str | int, ...], typo: str, meant: str
) -> None:
    section: Any = serve
    for part in place:
        section = section[part]
    section[typo] = 1
    problems = lint_serve(serve)
    assert any(f"{typo}: unknown key; did you mean '{meant}'?" in problem for problem in problems), problems


def test_a_wrong_argument_is_found_before_anything_is_deployed(serve: dict[str, Any]) -> None:
    path_app(serve)["args"]["speculative"]["layers"] = 0
    (problem,) = lint_serve(serve)
    assert problem.startswith("applications[2].args.speculative.layers: ")


def test_a_deployment_left_at_serves_limit_of_five_is_refused(serve: dict[str, Any]) -> None:
    del path_app(serve)["deployments"][0]["max_ongoing_requests"]
    (problem,) = lint_serve(serve)
    assert "max_ongoing_requests: missing" in problem


def test_applications_that_make_no_fleet_are_refused(serve: dict[str, Any]) -> None:
    without_path = {**serve, "applications": [item for item in serve["applications"] if item is not path_app(serve)]}
    assert any("router.args.paths" in problem for problem in lint_serve(without_path))
    without_router = {**serve, "applications": serve["applications"][:-1]}
    assert lint_serve(without_router) == ["applications: 'router' is missing"]


def test_a_foreign_import_path_is_refused(serve: dict[str, Any]) -> None:
    path_app(serve)["import_path"] = "deploy.serve_app:paths"
    (problem,) = lint_serve(serve)
    assert "import_path" in problem


def test_everything_that_is_wrong_with_a_serve_config_is_told_in_one_go(serve: dict[str, Any]) -> None:
    path_app(serve)["args"]["pth"] = "x"
    path_app(serve)["args"]["path"] = ""
    serve["http_options"]["port"] = "here"
    told = [problem.partition(": ")[0] for problem in lint_serve(serve)]
    assert [where.rpartition(".")[2] for where in told] == ["pth", "path", "port"]
