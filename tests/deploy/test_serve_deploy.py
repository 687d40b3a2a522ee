"""The fleet on a Ray cluster: `fleet manifest`, `fleet lint`, Ray's own `serve deploy`, and an update under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.manifest import render_manifest
from fleet.config import FleetConfig
from tests.deploy.ray_cluster import Cluster, free_ports, ray_cluster
from tests.e2e.harness import Fleet, wait_until
from tests.tiny_models import tiny_model_folder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]
TOKEN = "a-secret"
PATHS = ("baseline", "layers")
START_SECONDS = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster(cpus=8) as running:
        yield running


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("cluster")
    (port,) = free_ports(1)
    fleet = Fleet(
        folder, port, cluster.environment | {"FLEET_URL": f"http://127.0.0.1:{port}", "FLEET_ADMIN_TOKEN": TOKEN}
    )
    deploy(fleet, cluster, config_of(fleet))
    return fleet


def config_of(fleet: Fleet, draft_tokens: int = 3) -> dict[str, Any]:
    model = fleet.folder / "model"
    if not model.exists():
        tiny_model_folder(model)
    speculating = {"num_speculative_tokens": draft_tokens, "adaptive": False}
    return {
        "model": {"model": str(model), "dtype": "float32", "served_name": "tiny"},
        "engine": {"max_num_seqs": 8, "kv_cache_tokens": 4096, "threads": 1},
        "paths": {
            "baseline": {},
            "layers": {"speculative": {"method": "draft_model", "layers": 2, "draft_threads": 1} | speculating},
        },
        "router": {"replicas": 2, "admin_token": TOKEN},
        "controller": {"journal": str(fleet.folder / "journal.sqlite3")},
        "port": fleet.port,
    }


def deploy(fleet: Fleet, cluster: Cluster, config: Mapping[str, Any]) -> None:
    """What the README says: make the manifest, check it, deploy it."""
    source, manifest = fleet.folder / "fleet.yaml", fleet.folder / "serve.yaml"
    source.write_text(yaml.safe_dump(dict(config)))
    for arguments in (("manifest", "-f", str(source), "-o", str(manifest)), ("lint", "-f", str(manifest))):
        done = fleet.run(*arguments)
        assert done.returncode == 0, done.stderr
    serve(fleet, cluster, manifest)


def serve(fleet: Fleet, cluster: Cluster, manifest: Path) -> None:
    """Deploy a manifest and wait until it is in force."""
    cluster.serve("deploy", str(manifest))
    wait_until(lambda: statuses(cluster) == {"RUNNING"}, seconds=START_SECONDS, what="every application runs")
    wait_until(lambda: all(map(answers, (fleet,) * 2, PATHS)), seconds=60, what="both paths answer")


def statuses(cluster: Cluster) -> set[str]:
    found = cluster.applications()
    assert not [item for item in found.values() if item["status"] == "DEPLOY_FAILED"], found
    return {item["status"] for item in found.values()}


def answers(fleet: Fleet, path: str) -> bool:
    try:
        return complete(fleet, path, max_tokens=1).status_code == 200
    except httpx.TransportError:
        return False


def complete(fleet: Fleet, path: str, **options: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "There was a river", "ignore_eos": True, "seed": 5} | options
    return httpx.post(f"{fleet.url}/v1/completions", json=body, headers={"x-fleet-path": path}, timeout=120)


def test_the_deployed_fleet_answers_alike_on_both_paths_and_says_how_it_is(fleet: Fleet) -> None:
    texts = {complete(fleet, path, max_tokens=24).json()["choices"][0]["text"] for path in PATHS}
    assert len(texts) == 1
    wait_until(lambda: fleet.path("layers")["draft"] == "healthy", seconds=60, what="the draft joins its target")
    assert len(fleet.status()["routers"]) == 2


def test_requests_through_two_routers_are_all_counted_once(fleet: Fleet) -> None:
    def done() -> float:
        lines = httpx.get(f"{fleet.url}/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("fleet_requests_total{") and 'outcome="done"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in counted)

    before = done()
    for _ in range(10):
        assert complete(fleet, "baseline", max_tokens=2).status_code == 200
    wait_until(lambda: done() == before + 10, seconds=10, what="ten more requests")


def test_an_update_of_one_path_lets_its_streams_finish(fleet: Fleet, cluster: Cluster) -> None:
    expected = complete(fleet, "baseline", max_tokens=200, n=4).json()["choices"]
    before = fleet.path("layers")["replicas"][0]["pid"]
    stable = fleet.path("baseline")["replicas"][0]["pid"]
    seen: list[httpx.Response] = []

    def keep_asking(stop: threading.Event) -> None:
        while not stop.is_set():
            seen.append(complete(fleet, "layers", max_tokens=200, n=4))

    stop = threading.Event()
    asking = threading.Thread(target=keep_asking, args=(stop,))
    asking.start()
    try:
        manifest = fleet.folder / "update.yaml"
        manifest.write_text(render_manifest(FleetConfig.model_validate(config_of(fleet, draft_tokens=2))))
        serve(fleet, cluster, manifest)
        wait_until(lambda: fleet.path("layers")["replicas"][0]["pid"] != before, seconds=60, what="a new replica")
    finally:
        stop.set()
        asking.join()
    assert seen
    assert {answer.status_code for answer in seen} == {200}
    texts = [[choice["text"] for choice in answer.json()["choices"]] for answer in seen]
    assert all(text == [choice["text"] for choice in expected] for text in texts)
    assert fleet.path("baseline")["replicas"][0]["pid"] == stable, "other paths are left alone"
