from pathlib import Path
from typing import Any

import yaml

from deploy.kuberay import JOURNAL, JOURNAL_RESOURCE, serve_config, with_serve_config
from deploy.manifest import RAY_ENVIRONMENT
from fleet.config import load_fleet_config

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"


def ray_service() -> dict[str, Any]:
    documents = yaml.safe_load_all((MANIFESTS / "kuberay.yaml").read_text())
    (service,) = (document for document in documents if document["kind"] == "RayService")
    return dict(service["spec"])


def groups() -> list[dict[str, Any]]:
    cluster = ray_service()["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_the_shipped_file_holds_the_shipped_fleet() -> None:
    config = load_fleet_config(MANIFESTS / "fleet.yaml")
    text = (MANIFESTS / "kuberay.yaml").read_text()
    assert with_serve_config(text, config) == text
    assert yaml.safe_load(ray_service()["serveConfigV2"]) == serve_config(config)


def test_renewing_the_serve_config_changes_nothing_else() -> None:
    config = load_fleet_config(MANIFESTS / "fleet.yaml")
    text = (MANIFESTS / "kuberay.yaml").read_text()
    changed = with_serve_config(text, config.model_copy(update={"port": 9000}))
    different = [pair for pair in zip(text.splitlines(), changed.splitlines(), strict=True) if pair[0] != pair[1]]
    assert different == [("      port: 8000", "      port: 9000")]


def test_ray_starts_everywhere_with_the_environment_that_the_token_path_needs() -> None:
    for group in groups():
        (container,) = group["template"]["spec"]["containers"]
        assert {item["name"]: item["value"] for item in container["env"]} == RAY_ENVIRONMENT


def test_only_the_group_with_the_journals_volume_offers_the_journals_resource() -> None:
    offering = [group for group in groups() if JOURNAL_RESOURCE in group["rayStartParams"].get("resources", "")]
    (group,) = offering
    (mount,) = group["template"]["spec"]["containers"][0]["volumeMounts"]
    assert JOURNAL.is_relative_to(mount["mountPath"])
    assert group["maxReplicas"] == 1


def test_a_pod_is_given_longer_to_end_than_a_replica_gives_its_streams() -> None:
    spec = ray_service()
    applications = yaml.safe_load(spec["serveConfigV2"])["applications"]
    longest = max(item["deployments"][0]["graceful_shutdown_timeout_s"] for item in applications)
    (replicas,) = (group for group in groups() if group.get("groupName") == "replicas")
    assert replicas["template"]["spec"]["terminationGracePeriodSeconds"] > longest
    assert spec["rayClusterDeletionDelaySeconds"] > longest
