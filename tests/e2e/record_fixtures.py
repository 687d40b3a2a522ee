"""Records what `tests/canary/fixtures` keeps, on real fleets: `python -m tests.e2e.record_fixtures aa|slow-draft`."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.bench.load import drive
from deploy.bench.load_plan import LoadPlan
from fleet.config import ModelConfig
from replicas.model_store import resolve_model
from tests.e2e.conftest import common, speculating
from tests.e2e.cut import cut_layers
from tests.e2e.harness import MODEL_NAME, Fleet, prompts, start_fleet, stop_fleet

FIXTURES = Path(__file__).parents[1] / "canary" / "fixtures"
SLOWDOWN = 0.3
"""Of the draft's own time."""
DRAFT = speculating("draft_model", layers=2, deadline_floor_ms=1500)
LIMITS = {
    "itl_p95": {"max_increase": "5%"},
    "ttft_p95": {"max_increase": "15%"},
    "tpot_p95": {"max_increase": "10%"},
    "error_rate": {"max_increase": "0.5pp"},
    "completion_lag": {"max_increase": "10pp"},
}


def rollout_plan(stable: str, canary: str, minutes: float, guardrails: Mapping[str, Any]) -> dict[str, Any]:
    """Half of the traffic for so long; what is known of the canary by then decides."""
    return {
        "stable": stable,
        "canary": canary,
        "steps": [{"weight": 50, "bake": f"{minutes * 60:g}s"}, {"weight": 100}],
        "window": "5s",
        "last_step": "no_harm",
        "guardrails": dict(guardrails),
    }


@contextmanager
def running(folder: Path, model: Path, stable: str, paths: Mapping[str, Any]) -> Iterator[Fleet]:
    folder.mkdir()
    fleet = start_fleet(folder, common(folder, str(model)) | {"paths": dict(paths), "stable": stable})
    try:
        yield fleet
    finally:
        stop_fleet(fleet)


def load(fleet: Fleet, seconds: float, path: str | None = None) -> LoadPlan:
    return LoadPlan(
        url=fleet.url,
        prompts=tuple(prompts(24)),
        concurrency=6,
        duration_seconds=seconds,
        users=2000,
        max_tokens=24,
        temperature=0.0,
        path=path,
    )


async def record(fleet: Fleet, plan: Mapping[str, Any], minutes: float, out: Path) -> str:
    """Carry the plan out under load, for so long at most; how it ended, in one line."""
    started = fleet.run("canary", "start", "-f", str(fleet.plan("recorded", plan)))
    assert started.returncode == 0, started.stderr
    driver = asyncio.create_task(drive(load(fleet, 3600)))
    limit = minutes * 60 + 30
    await asyncio.to_thread(fleet.run, "canary", "status", "-w", "--timeout", f"{limit:g}", timeout=limit + 60)
    driver.cancel()
    await asyncio.gather(driver, return_exceptions=True)
    rollout = fleet.status()["rollout"]
    if rollout["state"] not in ("promoted", "rolled_back"):
        fleet.run("canary", "abort", "--reason", "recorded long enough")
    exported = fleet.run("canary", "export", str(out))
    assert exported.returncode == 0, exported.stderr
    return f"{rollout['state']}: {rollout['reason']} ({exported.stderr.strip()})"


def draft_seconds(fleet: Fleet, path: str) -> float:
    """Mean time of the path's draft in a round, as /metrics has it."""
    text = httpx.get(f"{fleet.url}/metrics", timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "fleet_draft_seconds" and sample.labels["path"] == path:
                return sample.value
    raise AssertionError(f"no draft time of {path} in /metrics")


def measured_draft_seconds(folder: Path, model: Path, stable: str, paths: Mapping[str, Any]) -> float:
    """Of a healthy draft under the same load."""
    with running(folder, model, stable, paths) as fleet:
        asyncio.run(drive(load(fleet, 30, path="healthy")))
        return draft_seconds(fleet, "healthy")


def record_aa(folder: Path, model: Path, minutes: float) -> None:
    """Two paths that are set up alike: nothing may be taken back."""
    with running(folder / "aa", model, "baseline", {"baseline": {}, "twin": {}}) as fleet:
        plan = rollout_plan("baseline", "twin", minutes, LIMITS)
        print(asyncio.run(record(fleet, plan, minutes, FIXTURES / "aa.jsonl.gz")))  # noqa: T201 - a script's answer


def record_slow_draft(folder: Path, model: Path, minutes: float) -> None:
    """The same draft model twice, once slower: the canary must be taken back."""
    healthy = {"baseline": {}, "healthy": {"speculative": DRAFT}}
    seconds = measured_draft_seconds(folder / "before", model, "healthy", healthy)
    delay = SLOWDOWN * seconds * 1000
    paths = healthy | {"slowed": {"speculative": DRAFT, "drill": {"draft_delay_ms": round(delay, 1)}}}
    with running(folder / "slow", model, "healthy", paths) as fleet:
        plan = rollout_plan("healthy", "slowed", minutes, {"itl_p95": LIMITS["itl_p95"]})
        ended = asyncio.run(record(fleet, plan, minutes, FIXTURES / "slow-draft.jsonl.gz"))
        print(f"draft {seconds * 1000:.1f} ms, delayed by {delay:.1f} ms; {ended}")  # noqa: T201 - a script's answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("aa", "slow-draft"))
    parser.add_argument("--minutes", type=float, default=20.0, help="longest time at 50 %%")
    parser.add_argument("--layers", type=int, default=4, help="of the model; 0 for all of them")
    arguments = parser.parse_args()
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = resolve_model(ModelConfig(model=MODEL_NAME, dtype="float32"), lambda line: None)
        model = cut_layers(target, folder / "model", arguments.layers) if arguments.layers else target
        {"aa": record_aa, "slow-draft": record_slow_draft}[arguments.what](folder, model, arguments.minutes)


if __name__ == "__main__":
    main()
