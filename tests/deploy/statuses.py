"""Answers of the controller, for what the command line makes of them."""

from __future__ import annotations

from typing import Any

from canary.status import Explanation, FleetStatus, Outlook, RolloutStatus, StepNeed, VerdictStatus


def verdict(**changes: Any) -> VerdictStatus:
    value = {
        "guardrail": "itl_p95",
        "level": "insufficient",
        "reason": "about 410 more requests",
        "unit": "percent",
        "estimate": 0.0421,
        "interval": (-0.013, 0.098),
        "limit": 0.1,
        "e_value": 1.834,
        "threshold": 60.0,
        "samples": 312,
        "needed": 410,
        "eta_seconds": 421.0,
        "trip_eta_seconds": None,
    }
    return VerdictStatus(**(value | changes))  # type: ignore[typeddict-item, no-any-return]


def explanation(**changes: Any) -> Explanation:
    value = {
        "rollout": "spec-1",
        "attempt": 1,
        "state": "baking",
        "weight": 25.0,
        "verdict": verdict(trip_eta_seconds=780.0),
        "asks": "is it slower?",
        "sample": "a window of both arms",
        "method": "a bet",
        "ignores": "warm-up",
        "acts": "it goes back",
        "error_chance": 0.05 / 3,
        "innocent": "a canary like that",
        "readings": [
            {"name": "stable p95", "value": 0.0412, "unit": "seconds", "samples": 2100, "limit": None},
            {"name": "greedy/short", "value": 0.71, "unit": "ratio", "samples": 90, "limit": 0.63},
        ],
        "note": "seen through fog",
    }
    return Explanation(**(value | changes))  # type: ignore[typeddict-item, no-any-return]


def rollout(**changes: Any) -> RolloutStatus:
    value = {
        "id": "spec-1",
        "attempt": 1,
        "stable": "baseline",
        "canary": "speculative",
        "state": "baking",
        "reason": "",
        "waiting_for": None,
        "step": 2,
        "steps": [{"weight": 5, "bake_seconds": 60}, {"weight": 25, "bake_seconds": 600}],
        "weight_set": 25.0,
        "weight_realised": 24.31,
        "requests_assigned": 169,
        "bake_elapsed_seconds": 90.0,
        "bake_left_seconds": 510.0,
        "windows": 3,
        "windows_needed": 10,
        "requests": 41,
        "requests_needed": 50,
        "verdicts": [verdict()],
        "started_at": 1_780_000_000.0,
        "ended_at": None,
        "plan": {},
    }
    return RolloutStatus(**(value | changes))  # type: ignore[typeddict-item, no-any-return]


def outlook(rate: float | None, *expected: float | None) -> Outlook:
    """Of a plan with steps at 5, 50 and 100 %, of which the last one asks for nothing."""
    needs = ((5.0, 3, 60, 60.0), (50.0, 3, 6, 60.0), (100.0, 0, 0, 0.0))
    return Outlook(
        steps=[
            StepNeed(
                step=number,
                weight=weight,
                canary_requests=canary,
                requests=requests,
                seconds=seconds,
                expected_seconds=about,
            )
            for number, ((weight, canary, requests, seconds), about) in enumerate(
                zip(needs, expected, strict=True), start=1
            )
        ],
        requests_per_second=rate,
    )


def fleet_status(present: RolloutStatus | None = None) -> FleetStatus:
    def path(name: str, role: str, draft: str, acceptance: float | None) -> dict[str, Any]:
        replica = {
            "replica_id": f"{name}-abc",
            "pid": 4711,
            "draft": draft,
            "draft_pid": 4712 if draft != "none" else None,
            "running": 2,
            "waiting": 0,
            "age_seconds": 0.4,
        }
        return {
            "path": name,
            "role": role,
            "is_speculative": draft != "none",
            "replicas_ready": 1,
            "replicas_wanted": 2,
            "draft": draft,
            "running": 2,
            "waiting": 1,
            "kv_used_tokens": 512,
            "kv_total_tokens": 2048,
            "in_flight": 3,
            "tokens_per_second": 87.25,
            "acceptance": acceptance,
            "draft_length": None if acceptance is None else 2.9,
            "drafting_note": "",
            "replicas": [replica],
            "fingerprint": {"engine.max_num_seqs": "16"},
        }

    value = {
        "model": "tiny",
        "stable": "baseline",
        "split": {"version": 7, "stable": "baseline", "canary": "speculative", "canary_percent": 25.0},
        "paths": [path("baseline", "stable", "none", None), path("speculative", "canary", "degraded", 0.62)],
        "routers": [
            {"router_id": "r1", "applied_split": 7, "age_seconds": 0.1, "in_flight": 4, "queued": 0},
            {"router_id": "r2", "applied_split": 6, "age_seconds": 0.2, "in_flight": 2, "queued": 1},
        ],
        "rollout": present,
        "evidence": None,
        "at": 1_780_000_100.0,
        "journal": "/state/journal.sqlite3",
    }
    return FleetStatus(**value)  # type: ignore[typeddict-item, no-any-return]
