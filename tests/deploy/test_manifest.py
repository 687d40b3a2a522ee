"""A fleet config becomes one Serve config whose every value is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.manifest import build_manifest, cpus_reserved, local_cpus, model_name, render_manifest
from deploy.serve_args import ControllerArgs, PathArgs, RouterArgs
from fleet.config import FleetConfig, ModelConfig, load_fleet_config

SHIPPED = Path(__file__).parents[2] / "deploy" / "manifests"


def fleet(**paths: dict[str, Any]) -> FleetConfig:
    return FleetConfig.model_validate({"paths": {"baseline": {}} | paths})


def application(config: FleetConfig, name: str) -> dict[str, Any]:
    return next(item for item in build_manifest(config)["applications"] if item["name"] == name)


def test_controller_paths_and_router_are_applications_of_their_own() -> None:
    manifest = build_manifest(fleet(speculative={"speculative": {"method": "ngram"}}))
    assert [item["name"] for item in manifest["applications"]] == [
        "controller",
        "path-baseline",
        "path-speculative",
        "router",
    ]
    assert [item["route_prefix"] for item in manifest["applications"]] == [None, None, None, "/"]


def test_arguments_survive_the_way_through_yaml() -> None:
    config = load_fleet_config(SHIPPED / "fleet.yaml")
    applications = {item["name"]: item for item in yaml.safe_load(render_manifest(config))["applications"]}
    path = PathArgs.model_validate(applications["path-speculative"]["args"])
    assert path.speculative == config.paths["speculative"].speculative
    assert path.engine == config.engine
    assert path.model == config.model
    assert RouterArgs.model_validate(applications["router"]["args"]).router == config.router
    controller = ControllerArgs.model_validate(applications["controller"]["args"])
    assert {name: item.is_speculative for name, item in controller.paths.items()} == {
        "baseline": False,
        "speculative": True,
    }


def test_the_number_of_replicas_is_no_argument_so_scaling_restarts_nothing() -> None:
    one, three = application(fleet(), "path-baseline"), application(fleet(baseline={"replicas": 3}), "path-baseline")
    assert one["args"] == three["args"]
    assert (one["deployments"][0]["num_replicas"], three["deployments"][0]["num_replicas"]) == (1, 3)


def test_a_draft_worker_gets_the_second_bundle_with_its_fraction_of_a_gpu() -> None:
    path = {
        "num_gpus": 1,
        "num_cpus": 2,
        "draft": {"num_gpus": 0.25, "num_cpus": 1},
        "speculative": {"method": "draft_model", "layers": 2},
    }
    deployment = application(fleet(fast=path), "path-fast")["deployments"][0]
    assert deployment["placement_group_bundles"] == [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 0.25}]
    assert deployment["placement_group_strategy"] == "STRICT_PACK"
    assert deployment["ray_actor_options"] == {"num_cpus": 2.0, "num_gpus": 1.0}


def test_the_controller_knows_how_many_gpus_a_replica_takes() -> None:
    path = {"num_gpus": 1, "draft": {"num_gpus": 0.25}, "speculative": {"method": "draft_model", "layers": 2}}
    paths = application(fleet(fast=path), "controller")["args"]["paths"]
    assert paths["fast"]["gpus"] == 1.25
    assert "gpus" not in paths["baseline"]


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}])
def test_a_path_without_a_draft_worker_needs_no_placement_group(speculative: dict[str, str] | None) -> None:
    deployment = application(fleet(other={"speculative": speculative}), "path-other")["deployments"][0]
    assert "placement_group_bundles" not in deployment


def test_autoscaling_replaces_the_fixed_number() -> None:
    scaling = {"min_replicas": 2, "max_replicas": 5, "target_ongoing_requests": 6}
    deployment = application(fleet(baseline={"autoscaling": scaling}), "path-baseline")["deployments"][0]
    assert deployment["autoscaling_config"] == scaling
    assert "num_replicas" not in deployment


def test_streams_get_ten_minutes_to_finish_before_a_replica_goes() -> None:
    for name in ("path-baseline", "router"):
        assert application(fleet(), name)["deployments"][0]["graceful_shutdown_timeout_s"] >= 600


def test_serves_limit_never_bites_before_the_routers_own() -> None:
    config = fleet().model_copy(update={"router": fleet().router.model_copy(update={"max_in_flight": 5000})})
    assert application(config, "router")["deployments"][0]["max_ongoing_requests"] >= 5000 + config.router.max_queued


def test_one_machine_declares_enough_cpus_for_every_actor() -> None:
    config = fleet(fast={"replicas": 4, "speculative": {"method": "draft_model", "layers": 2}})
    # 0.5 router + 0.2 controller + 0.5 baseline + 4 × (0.5 target + 0.5 draft) + 1 spare
    assert cpus_reserved(config) == pytest.approx(6.2)
    assert local_cpus(config, cores=2) == 7
    assert local_cpus(config, cores=64) == 64


def test_sockets_stay_on_loopback_where_the_fleet_does() -> None:
    assert application(fleet(), "path-baseline")["args"]["token_host"] == "127.0.0.1"
    public = fleet().model_copy(update={"host": "0.0.0.0"})
    assert "token_host" not in application(public, "path-baseline")["args"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelConfig(model="org/Some-1B"), "Some-1B"),
        (ModelConfig(model="/models/folder/"), "folder"),
        (ModelConfig(model="org/x", served_name="mine"), "mine"),
    ],
)
def test_the_api_names_the_model_by_its_last_part_unless_told(model: ModelConfig, name: str) -> None:
    assert model_name(model) == name


def test_the_shipped_serve_config_is_the_one_generated_from_the_shipped_fleet() -> None:
    generated = render_manifest(load_fleet_config(SHIPPED / "fleet.yaml"))
    assert (SHIPPED / "serve.yaml").read_text() == generated
