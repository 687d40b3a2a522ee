import io
from pathlib import Path

import pytest
from rich.console import Console

from deploy.bench.router_cost import ROLES, ROUTES, TOKENS, Usage, cpu_used, role_of
from deploy.bench.router_cost_report import OFF_THE_WAY, ON_THE_WAY, render, summarise
from deploy.bench.sse_probe import Arrivals
from deploy.bench.stand_in_fleet import fleet_config, manifest
from fleet.errors import Unavailable

MILLISECOND = 1_000_000


def steady(count: int, start_ms: float, delays_ms: list[float]) -> Arrivals:
    """A token every 10 ms; token i travels `delays_ms[i]` (cyclic)."""
    emitted = [int((start_ms + 10 * i) * MILLISECOND) for i in range(count)]
    arrived = [at + int(delays_ms[i % len(delays_ms)] * MILLISECOND) for i, at in enumerate(emitted)]
    return Arrivals(emitted, arrived)


CPU = {"proxy": 0.1, "router": 0.2, "worker": 0.2, "ray": 9.0, "client": 9.0}


def test_a_path_that_delays_all_tokens_alike_adds_nothing_to_the_inter_token_latency() -> None:
    trial = summarise("fleet", "paced", [steady(100, 50, [3.0])] * 2, 0, CPU)
    assert trial.itl_p95 == pytest.approx(0.010)
    assert trial.added_itl_p95 == pytest.approx(0.0, abs=1e-9)
    assert trial.transit_p95 == pytest.approx(0.003)
    assert trial.ttft == pytest.approx(0.053)


def test_jitter_on_the_path_shows_in_what_it_adds() -> None:
    trial = summarise("fleet", "paced", [steady(100, 50, [0.0, 4.0])], 0, CPU)
    assert trial.added_itl_p95 == pytest.approx(0.004)


def test_throughput_counts_only_the_time_in_which_all_streams_were_open() -> None:
    late = steady(11, 500, [0.0])
    trial = summarise("fleet", "unpaced", [steady(101, 0, [0.0]), late], 0, CPU)
    assert trial.tokens == 112
    assert trial.tokens_per_second == pytest.approx(200.0)


def test_the_cost_of_the_whole_path_leaves_out_ray_and_the_reader() -> None:
    trial = summarise("fleet", "unpaced", [steady(100, 0, [0.0])], 0, CPU)
    assert trial.tokens_per_core_second == pytest.approx(200.0)
    assert trial.tokens_per_router_second == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::ServeReplica:router:Router", "router"),
        ("ray::ServeReplica:plain:Plain", "router"),
        ("ray::ServeReplica:plain:PlainWorker.handle_request", "worker"),
        ("ray::ServeReplica:path-paced:Path", "worker"),
        ("haproxy -db -f haproxy.cfg", "proxy"),
        ("ray::ProxyActor", "proxy"),
        ("ray::ServeReplica:controller:Controller", "ray"),
        ("python -m ray.dashboard.agent", "ray"),
    ],
)
def test_processes_are_told_apart_by_their_titles(title: str, role: str) -> None:
    assert role_of(title[:15], title) == role


def test_cpu_time_is_taken_process_by_process_and_new_ones_count_from_their_start() -> None:
    before = {1: Usage("router", 5.0), 2: Usage("ray", 7.0), 3: Usage("ray", 9.0)}
    after = {1: Usage("router", 6.5), 2: Usage("ray", 7.25), 4: Usage("proxy", 0.5)}
    used = cpu_used(before, after)
    assert used == {"proxy": 0.5, "router": 1.5, "worker": 0.0, "ray": 0.25, "client": 0.0}


def test_a_router_that_is_replaced_in_between_spoils_the_trial() -> None:
    with pytest.raises(Unavailable, match="router"):
        cpu_used({1: Usage("router", 5.0)}, {2: Usage("router", 0.5)})


def test_every_role_is_reported_and_every_variant_has_its_tokens() -> None:
    assert set(ROLES.values()) <= {*ON_THE_WAY, *OFF_THE_WAY}
    assert {variant for variant, _ in TOKENS} == set(ROUTES)


def test_the_table_shows_medians_with_their_spread() -> None:
    trials = [
        summarise(variant, pace, [steady(100, 0, [0.0, delay])], 0, CPU)
        for variant in ROUTES
        for pace in ("paced", "unpaced")
        for delay in (1.0, 2.0, 7.0)
    ]
    screen = io.StringIO()
    Console(file=screen, width=140).print(render(trials))
    assert "2.0 (1.0 – 7.0)" in screen.getvalue()


def test_the_fleet_under_measurement_is_the_real_one_but_for_its_workers(tmp_path: Path) -> None:
    config = fleet_config(18000, tmp_path)
    applications = {item["name"]: item["import_path"] for item in manifest(config)["applications"]}
    assert applications["router"] == "deploy.serve_app:router"
    assert applications["controller"] == "deploy.serve_app:controller"
    assert {applications["path-paced"], applications["path-unpaced"]} == {"deploy.bench.stand_in_app:path"}
    assert applications["plain"] == "deploy.bench.stand_in_app:plain"
