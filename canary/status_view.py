"""How does the controller's knowledge look from outside? Status, realised weight and the metrics' snapshot."""

from __future__ import annotations

import os
from dataclasses import dataclass

from canary.desk import Dates
from canary.drafting import drafting_note
from canary.drift import Reason
from canary.drift_watch import DriftWatch
from canary.fleet_view import FleetView, Seen
from canary.memory import Memory
from canary.rates import Rates
from canary.rollout_state import Rollout, stage_of, step_weight, verdicts_of, waiting_for
from canary.status import (
    DriftStatus,
    EvidenceStatus,
    FleetStatus,
    PathStatus,
    ReplicaStatus,
    RolloutStatus,
    RouterStatus,
    SplitStatus,
    StepStatus,
    VerdictStatus,
)
from canary.trend import Moment
from canary.verdict import Verdict
from canary.windows import OpenWindow
from fleet.metrics import DRAFT_HEALTH, GuardrailSnapshot, PathSnapshot, RolloutSnapshot, Snapshot
from fleet.traffic import PathTally, Split


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that status and metrics are made of, at one moment of the rollout's clock."""

    model_name: str
    at: float
    split: Split
    memory: Memory
    view: FleetView
    rates: Rates
    rollout: Rollout | None
    watch: DriftWatch


def fleet_status(picture: Picture, rollout: RolloutStatus | None, *, wall: float, journal: str) -> FleetStatus:
    split = picture.split
    return FleetStatus(
        model=picture.model_name,
        stable=picture.memory.stable,
        split=SplitStatus(
            version=split.version, stable=split.stable, canary=split.canary, canary_percent=split.canary_percent
        ),
        paths=[path_status(picture, path) for path in picture.view.paths],
        routers=[
            RouterStatus(
                router_id=router.router_id,
                pid=router.pid,
                applied_split=router.applied_split,
                age_seconds=picture.at - router.at,
                in_flight=sum(router.in_flight.values()),
                queued=router.queued,
            )
            for router in picture.view.routers.values()
        ],
        rollout=rollout,
        evidence=_evidence(picture.watch),
        at=wall,
        journal=journal,
        controller_pid=os.getpid(),
    )


def path_status(picture: Picture, path: str) -> PathStatus:
    """One path as `fleet status` shows it."""
    facts, replicas = picture.view.paths[path], picture.view.of(path)
    reports = [seen.report for seen in replicas]
    recent = picture.rates.busy.get(path)
    role = "stable" if path == picture.split.stable else "canary" if path == picture.split.canary else "idle"
    return PathStatus(
        path=path,
        role=role,
        is_speculative=facts.is_speculative,
        replicas_ready=len(replicas),
        replicas_wanted=facts.replicas,
        draft=max((report.draft for report in reports), key=_severity, default=DRAFT_HEALTH[0]),
        running=sum(report.running for report in reports),
        waiting=sum(report.waiting for report in reports),
        kv_used_tokens=sum(report.kv_used_tokens for report in reports),
        kv_total_tokens=sum(report.kv_total_tokens for report in reports),
        in_flight=picture.view.in_flight(path),
        tokens_per_second=picture.rates.tokens_per_second(path),
        acceptance=picture.rates.acceptance(path),
        draft_length=recent.drafted / recent.rounds if recent is not None else None,
        drafting_note=drafting_note(reports[0], recent, picture.rates.seen(path)) if reports and recent else "",
        replicas=[_replica(seen, picture.at) for seen in replicas],
        fingerprint=picture.view.fingerprints()[path],
    )


def _evidence(watch: DriftWatch) -> EvidenceStatus | None:
    evidence = watch.evidence
    if evidence is None:
        return None
    return EvidenceStatus(
        folder=evidence.folder,
        created=evidence.created,
        canary=watch.canary,
        is_stale=bool(watch.drifts),
        drifts=[
            DriftStatus(reason=drift.reason, detail=drift.detail, value=drift.value, limit=drift.limit)
            for drift in watch.drifts
        ],
        renew=evidence.renew,
    )


def _stale(watch: DriftWatch) -> dict[str, bool]:
    """By reason; empty without evidence."""
    if watch.evidence is None:
        return {}
    return {reason.value: any(drift.reason is reason for drift in watch.drifts) for reason in Reason}


def _severity(health: str) -> int:
    return DRAFT_HEALTH.index(health) if health in DRAFT_HEALTH else len(DRAFT_HEALTH)


def _replica(seen: Seen, at: float) -> ReplicaStatus:
    report = seen.report
    return ReplicaStatus(
        replica_id=report.replica_id,
        pid=report.pid,
        draft=report.draft,
        draft_pid=report.draft_pid,
        running=report.running,
        waiting=report.waiting,
        age_seconds=at - seen.at,
    )


def rollout_status(rollout: Rollout, window: OpenWindow | None, at: float, dates: Dates) -> RolloutStatus:
    plan, evidence, stage = rollout.plan, rollout.evidence, stage_of(rollout)
    bake, elapsed = plan.steps[rollout.step].bake, rollout.elapsed(at)
    return RolloutStatus(
        id=rollout.id,
        attempt=rollout.attempt,
        stable=plan.stable,
        canary=plan.canary,
        state=rollout.state.value,
        reason=rollout.reason,
        waiting_for=waiting_for(rollout, at),
        step=rollout.step + 1,
        steps=[
            StepStatus(weight=step_weight(plan, index), bake_seconds=step.bake) for index, step in enumerate(plan.steps)
        ],
        weight_set=rollout.weight,
        weight_realised=realised_weight(rollout, window),
        requests_assigned=sum(assigned(rollout, window)),
        bake_elapsed_seconds=elapsed,
        bake_left_seconds=max(0.0, bake - elapsed),
        windows=evidence.step_windows,
        windows_needed=stage.windows_needed,
        requests=evidence.step_requests[1],
        requests_needed=stage.requests_needed,
        verdicts=[verdict_status(verdict) for verdict in verdicts_of(rollout)],
        started_at=dates.started_at,
        ended_at=dates.ended_at,
        plan=dict(dates.plan),
    )


def assigned(rollout: Rollout, window: OpenWindow | None) -> tuple[int, int]:
    """Stable's and the canary's compared requests since the weight last changed."""
    stable, canary = rollout.evidence.assigned
    if window is not None and rollout.is_judged and not rollout.evidence.is_mixed(rollout.plan):
        stable += window.tallies.get(rollout.plan.stable, PathTally()).assigned
        canary += window.tallies.get(rollout.plan.canary, PathTally()).assigned
    return stable, canary


def realised_weight(rollout: Rollout, window: OpenWindow | None) -> float | None:
    """Percent of them that the canary was given."""
    stable, canary = assigned(rollout, window)
    return 100.0 * canary / (stable + canary) if stable + canary else None


def trend_moment(picture: Picture, wall: float) -> Moment:
    """How traffic is divided now, for the series of the past."""
    rollout = picture.rollout
    if rollout is None:
        return Moment(picture.at, wall)
    realised = realised_weight(rollout, picture.memory.window) if rollout.is_judged else None
    return Moment(picture.at, wall, rollout.weight, realised)


def verdict_status(verdict: Verdict) -> VerdictStatus:
    proof, need = verdict.proof, verdict.need
    return VerdictStatus(
        guardrail=verdict.guardrail,
        level=verdict.level.label,
        reason=verdict.reason,
        unit=verdict.unit,
        estimate=verdict.estimate,
        interval=verdict.interval,
        limit=verdict.limit,
        e_value=None if proof is None else proof.e_value,
        threshold=None if proof is None else proof.threshold,
        samples=verdict.samples,
        needed=None if need is None else need.samples,
        eta_seconds=None if need is None else need.seconds,
        trip_eta_seconds=verdict.trip_seconds,
    )


def metrics_of(picture: Picture, *, wall: float, journal_failures: int) -> Snapshot:
    """What a scrape shows."""
    view, memory = picture.view, picture.memory
    return Snapshot(
        model_name=picture.model_name,
        paths=[
            PathSnapshot(
                path=path,
                totals=memory.served.get(path, PathTally()),
                replicas=[seen.report for seen in view.of(path)],
                replicas_wanted=facts.replicas,
                preemptions=memory.preemptions.get(path, 0),
                in_flight=view.in_flight(path),
                draft_link=memory.draft_link.get(path, {}),
            )
            for path, facts in view.paths.items()
        ],
        rollout=None if picture.rollout is None else _rollout(picture.rollout, memory.window),
        evidence_stale=_stale(picture.watch),
        trips=memory.trips,
        split_version=picture.split.version,
        routers=len(view.routers),
        routers_current=sum(router.applied_split >= picture.split.version for router in view.routers.values()),
        queued=sum(router.queued for router in view.routers.values()),
        journal_failures=journal_failures,
        webhook_failures={name: memory.webhook_failures.get(name, 0) for name in memory.notified},
        taken_at=wall,
    )


def _rollout(rollout: Rollout, window: OpenWindow | None) -> RolloutSnapshot:
    guardrails = [
        GuardrailSnapshot(
            verdict.guardrail,
            int(verdict.level),
            None if verdict.proof is None else verdict.proof.e_value,
            None if verdict.proof is None else verdict.proof.threshold,
        )
        for verdict in verdicts_of(rollout)
    ]
    return RolloutSnapshot(rollout.state.value, rollout.weight, realised_weight(rollout, window), guardrails)
