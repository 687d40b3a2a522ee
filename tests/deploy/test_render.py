"""What a user must always see is on the screen: both weights, bake left, samples, and every guardrail's numbers."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from canary.status import EvidenceStatus
from deploy.fleet_state import FleetState
from deploy.render import (
    amount,
    duration,
    evidence,
    evidence_line,
    fleet_view,
    history_view,
    interval,
    outlook_lines,
    progress_line,
    rollout_line,
    rollout_view,
    rollouts_view,
    samples,
    split_line,
    starting_view,
    step_line,
)
from tests.deploy.statuses import fleet_status, outlook, rollout, verdict


def shown(view: RenderableType) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(view)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_a_rollout_shows_set_and_realised_weight_and_the_bake_left() -> None:
    assert step_line(rollout()) == (
        "step 2/2 · weight set 25 %, realised 24.3 % of 169 requests since all routers follow it · "
        "bake 1m30s done, 8m30s left"
    )
    unknown = step_line(rollout(weight_realised=None, requests_assigned=0))
    assert "realised –, no request yet since all routers follow it" in unknown


def test_a_rollout_shows_samples_so_far_and_needed_and_what_it_waits_for() -> None:
    assert progress_line(rollout()) == "windows 3/10 · canary requests ended in this step 41/50"
    waiting = progress_line(rollout(waiting_for="9 more canary requests"))
    assert waiting.endswith("waiting for 9 more canary requests")


def test_a_guardrail_shows_estimate_interval_limit_evidence_and_samples() -> None:
    text = shown(rollout_view(rollout()))
    for part in (
        "itl_p95",
        "insufficient",
        "+4.2 %",
        "-1.3 % … +9.8 %",
        "+10.0 %",
        "1.83 / 60",
        "312, 410 more (7m01s)",
    ):
        assert part in text, part


def test_a_promoted_rollout_shows_no_figures_of_a_comparison_that_is_over() -> None:
    text = shown(rollout_view(rollout(state="promoted", reason="every step passed", weight_set=100.0)))
    assert text.strip() == "rollout 'spec-1' (baseline → speculative) promoted: every step passed"
    assert "itl_p95" in shown(rollout_view(rollout(state="promoted", weight_set=95.0))), "a holdback is compared on"


def test_a_rolled_back_rollout_says_why_in_its_first_line() -> None:
    line = rollout_line(rollout(state="rolled_back", reason="itl_p95 +31 % > +10 %", attempt=2))
    assert line == "'spec-1' (baseline → speculative, attempt 2) rolled_back: itl_p95 +31 % > +10 %"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.12, "percent", "+12.0 %"),
        (-0.005, "points", "-0.50 pp"),
        (3.0, "count", "3"),
        (0.6204, "ratio", "0.620"),
        (None, "percent", "–"),
    ],
)
def test_numbers_carry_their_unit(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [((None, 0.5), "-∞ … +50.0 %"), ((-0.1, None), "-10.0 % … ∞"), (None, "–")],
)
def test_an_unbounded_interval_is_shown_as_such(bounds: Any, text: str) -> None:
    assert interval(verdict(interval=bounds)) == text


def test_evidence_and_samples_without_a_threshold_or_need_stay_short() -> None:
    assert evidence(verdict(e_value=None)) == "–"
    assert evidence(verdict(threshold=None)) == "1.83"
    assert samples(verdict(needed=0, eta_seconds=0.0)) == "312"
    assert samples(verdict(needed=0)) == "312 (enough in 7m01s)", "windows, or growth of the evidence, take time too"
    assert samples(verdict(eta_seconds=None)) == "312, 410 more"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59, "59s"), (90, "1m30s"), (3_660, "1h01m")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_fleet_view_shows_paths_replicas_draft_health_weights_and_load() -> None:
    text = shown(fleet_view(fleet_status(rollout())))
    for part in ("1/2", "degraded", "4711", "4712", "25%", "87.2", "62%", "25 % of eligible", "realised 24.3 %"):
        assert part in text, part
    assert "routers 2 (1 on split 7) · in flight 6 · queued 1" in text
    assert "'spec-1'" in text


def test_a_path_that_hardly_drafts_says_why_below_the_tables() -> None:
    status = fleet_status()
    assert "path 'speculative':" not in shown(fleet_view(status))
    status["paths"][1]["drafting_note"] = "drafting paused: measured not to pay"
    assert "path 'speculative': drafting paused: measured not to pay" in shown(fleet_view(status))


def test_an_outlook_says_what_each_step_asks_and_how_long_that_takes() -> None:
    assert outlook_lines(outlook(0.5, 120.0, 60.0, 0.0)) == [
        "step 1 at 5 %: 3 canary requests, so about 60 eligible ones, and at least 1m00s, "
        "at the present rate about 2m00s",
        "step 2 at 50 %: 3 canary requests, so about 6 eligible ones, and at least 1m00s",
        "step 3 at 100 %: asks for nothing",
        "in all at least 2m00s; at the present 0.5 requests/s about 3m00s",
    ]


def test_an_outlook_without_traffic_or_without_a_fleet_names_no_time_it_cannot_know() -> None:
    assert outlook_lines(outlook(0.0, None, None, 0.0))[-1] == (
        "in all at least 2m00s; no requests end just now, and without them nothing moves"
    )
    assert outlook_lines(outlook(None, None, None, 0.0))[-1] == "in all at least 2m00s"


def test_without_a_canary_all_traffic_is_on_stable() -> None:
    status = fleet_status()
    status["split"]["canary"] = None
    assert split_line(status) == "all traffic to 'baseline'"


def test_history_and_list_show_every_entry_with_its_reason() -> None:
    event = {
        "id": 1,
        "at": 1_780_000_000.0,
        "rollout": "spec-1",
        "attempt": 1,
        "event": "GuardrailFailed",
        "state": "rolled_back",
        "weight": 0.0,
        "summary": "itl_p95 +31.0 % > +10 %, e 75 ≥ 60",
    }
    assert "itl_p95 +31.0 % > +10 %, e 75 ≥ 60" in shown(history_view([event]))  # type: ignore[list-item]
    summary = {
        "id": "spec-1",
        "canary": "speculative",
        "state": "promoted",
        "attempt": 2,
        "weight": 98.0,
        "reason": "all steps passed",
        "started_at": 1_780_000_000.0,
        "ended_at": None,
    }
    text = shown(rollouts_view([summary]))  # type: ignore[list-item]
    assert "98 %" in text
    assert "all steps passed" in text


def test_a_starting_fleet_shows_what_it_does_and_how_far_each_application_is() -> None:
    state = FleetState(
        instance="i",
        pid=1,
        url="http://127.0.0.1:8000",
        model="tiny",
        admin_token="t",
        ray_folder="/tmp/x",
        message="loading",
        applications={"router": "RUNNING", "path-baseline": "DEPLOYING"},
    )
    text = shown(starting_view(state))
    for part in ("loading", "path-baseline", "deploying", "router", "running"):
        assert part in text, part


def test_stale_evidence_says_why_and_what_to_do() -> None:
    stale = EvidenceStatus(
        folder="evidence",
        created=1_780_000_000.0,
        canary="speculative",
        is_stale=True,
        drifts=[{"reason": "traffic_mix", "detail": "PSI 0.61 is above 0.25", "value": 0.61, "limit": 0.25}],
        renew="fleet bench matrix -f evidence/matrix.yaml -o evidence-2",
    )
    status = fleet_status(rollout())
    text = shown(fleet_view({**status, "evidence": stale}))
    assert "is stale (traffic_mix: PSI 0.61 is above 0.25)" in " ".join(text.split())
    assert "renew it: fleet bench matrix -f evidence/matrix.yaml -o evidence-2" in " ".join(text.split())
    fresh = stale | {"is_stale": False, "drifts": []}
    assert evidence_line(EvidenceStatus(**fresh)).endswith("still holds")  # type: ignore[typeddict-item]
    assert "still holds" not in shown(fleet_view(status))
