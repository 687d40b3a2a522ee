"""How the fleet and its rollout look in a terminal: status in, text and tables out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from canary.status import (
    EvidenceStatus,
    FleetStatus,
    HistoryEntry,
    Outlook,
    PathStatus,
    ReplicaStatus,
    RolloutStatus,
    RolloutSummary,
    StepNeed,
    VerdictStatus,
)
from deploy.fleet_state import FleetState

UNKNOWN = "–"
_PROSE = ("reason", "summary")
_COLOURS = {
    "pass": "green",
    "insufficient": "yellow",
    "no_data": "magenta",
    "fail": "bold red",
    "promoted": "bold green",
    "baking": "cyan",
    "preparing": "cyan",
    "paused": "yellow",
    "holding": "magenta",
    "rolled_back": "bold red",
    "aborted": "bold red",
    "healthy": "green",
    "degraded": "yellow",
    "lost": "red",
    "running": "green",
    "deploying": "cyan",
}


def fleet_view(status: FleetStatus) -> RenderableType:
    """Paths, replicas, draft health, weights, load; what `fleet status` shows."""
    rollout = status["rollout"]
    parts: list[RenderableType] = [
        Text(f"model {status['model']} · stable path '{status['stable']}' · {split_line(status)}"),
        _paths_table(status["paths"]),
        _replicas_table(status["paths"]),
        Text(routers_line(status)),
        *(Text(line, style="yellow") for line in drafting_lines(status["paths"])),
    ]
    if rollout is not None:
        parts.append(Text.assemble("rollout ", _coloured(rollout_line(rollout), rollout["state"])))
    if (evidence := status.get("evidence")) is not None:
        parts.append(Text(evidence_line(evidence), style="yellow" if evidence["is_stale"] else ""))
    return Group(*parts)


def starting_view(state: FleetState) -> RenderableType:
    """How far a local fleet is on its way up."""
    grid = Table.grid(padding=(0, 2))
    for name, condition in sorted(state.applications.items()):
        grid.add_row("", name, _coloured(condition.lower(), condition.lower()))
    return Group(Spinner("dots", Text(state.message or state.phase)), grid)


def rollout_view(rollout: RolloutStatus) -> RenderableType:
    """Step, weights, bake, samples and every guardrail's numbers; what `fleet canary status` shows."""
    headline = Text.assemble("rollout ", _coloured(rollout_line(rollout), rollout["state"]))
    if rollout["state"] == "promoted" and rollout["weight_set"] == 100:
        return headline  # nothing is compared any more, and the last step's figures would read as if it still were
    return Group(
        headline,
        Text(step_line(rollout)),
        Text(progress_line(rollout)),
        _verdicts_table(rollout["verdicts"]),
    )


def history_view(events: Sequence[HistoryEntry]) -> RenderableType:
    """A rollout's journal, oldest first."""
    table = _table("time", "rollout", ">attempt", "event", "state", ">weight", "summary")
    for event in events:
        table.add_row(
            clock_time(event["at"]),
            event["rollout"],
            str(event["attempt"]),
            event["event"],
            _coloured(event["state"], event["state"]),
            f"{event['weight']:g} %",
            event["summary"],
        )
    return table


def rollouts_view(rollouts: Sequence[RolloutSummary]) -> RenderableType:
    """All rollouts, oldest first."""
    table = _table("rollout", "canary", "state", ">attempt", ">weight", "started", "ended", "reason")
    for rollout in rollouts:
        ended = rollout["ended_at"]
        table.add_row(
            rollout["id"],
            rollout["canary"],
            _coloured(rollout["state"], rollout["state"]),
            str(rollout["attempt"]),
            f"{rollout['weight']:g} %",
            clock_time(rollout["started_at"]),
            UNKNOWN if ended is None else clock_time(ended),
            rollout["reason"],
        )
    return table


def drafting_lines(paths: Sequence[PathStatus]) -> list[str]:
    """Which speculative paths draft hardly anything, and why."""
    return [f"path '{path['path']}': {path['drafting_note']}" for path in paths if path["drafting_note"]]


def outlook_lines(outlook: Outlook) -> list[str]:
    """What each step asks of the traffic, and how long that takes."""
    steps, rate = outlook["steps"], outlook["requests_per_second"]
    lines = [f"step {step['step']} at {step['weight']:g} %: {_asked(step)}" for step in steps]
    lines.append(f"in all at least {duration(sum(step['seconds'] for step in steps))}")
    expected = [step["expected_seconds"] for step in steps]
    if rate:
        seconds = sum(seconds for seconds in expected if seconds is not None)
        lines[-1] += f"; at the present {rate:.2g} requests/s about {duration(seconds)}"
    elif rate is not None and None in expected:
        lines[-1] += "; no requests end just now, and without them nothing moves"
    return lines


def _asked(step: StepNeed) -> str:
    if not step["seconds"]:
        return "asks for nothing"
    requests = f"{step['canary_requests']} canary requests, so about {step['requests']} eligible ones"
    least, expected = step["seconds"], step["expected_seconds"]
    about = f", at the present rate about {duration(expected)}" if expected is not None and expected > least else ""
    return f"{requests}, and at least {duration(least)}{about}"


def split_line(status: FleetStatus) -> str:
    """Who gets which share, as set and as it turned out."""
    split, rollout = status["split"], status["rollout"]
    if split["canary"] is None:
        return f"all traffic to '{split['stable']}'"
    realised = UNKNOWN if rollout is None else _realised(rollout)
    return (
        f"{split['canary_percent']:g} % of eligible requests to '{split['canary']}' "
        f"(realised {realised}), the rest to '{split['stable']}'"
    )


def evidence_line(status: EvidenceStatus) -> str:
    """Whether the evidence still holds, and if not why and what to do."""
    measured = f"evidence {status['folder']} of {clock_time(status['created'])}"
    if not status["is_stale"]:
        return f"{measured} still holds"
    why = "; ".join(f"{drift['reason']}: {drift['detail']}" for drift in status["drifts"])
    return f"{measured} is stale ({why}); renew it: {status['renew']}"


def routers_line(status: FleetStatus) -> str:
    """Routers, their load, and how many already route by the present split."""
    routers, version = status["routers"], status["split"]["version"]
    current = sum(1 for router in routers if router["applied_split"] >= version)
    in_flight = sum(router["in_flight"] for router in routers)
    queued = sum(router["queued"] for router in routers)
    return f"routers {len(routers)} ({current} on split {version}) · in flight {in_flight} · queued {queued}"


def rollout_line(rollout: RolloutStatus) -> str:
    """State and reason in one line."""
    attempt = f", attempt {rollout['attempt']}" if rollout["attempt"] > 1 else ""
    reason = f": {rollout['reason']}" if rollout["reason"] else ""
    return f"'{rollout['id']}' ({rollout['stable']} → {rollout['canary']}{attempt}) {rollout['state']}{reason}"


def step_line(rollout: RolloutStatus) -> str:
    """Which step, and the share the canary should have and has."""
    return (
        f"step {rollout['step']}/{len(rollout['steps'])} · weight set {rollout['weight_set']:g} %, "
        f"realised {_realised(rollout)} · bake {duration(rollout['bake_elapsed_seconds'])} done, "
        f"{duration(rollout['bake_left_seconds'])} left"
    )


def progress_line(rollout: RolloutStatus) -> str:
    """Samples so far and needed, and what the next step waits for."""
    line = (
        f"windows {rollout['windows']}/{rollout['windows_needed']} · "
        f"canary requests ended in this step {rollout['requests']}/{rollout['requests_needed']}"
    )
    waiting_for = rollout["waiting_for"]
    return f"{line} · waiting for {waiting_for}" if waiting_for else line


def amount(value: float | None, unit: str) -> str:
    """An estimate or limit in its unit: percent and points are fractions."""
    if value is None:
        return UNKNOWN
    match unit:
        case "percent":
            return f"{100 * value:+.1f} %"
        case "points":
            return f"{100 * value:+.2f} pp"
        case "count":
            return f"{value:g}"
        case "seconds":
            return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"
        case "rate":
            return f"{value:.3g}/s"
        case _:
            return f"{value:.3f}"


def interval(verdict: VerdictStatus) -> str:
    """The anytime-valid interval; an unbounded end is shown as such."""
    bounds = verdict["interval"]
    if bounds is None:
        return UNKNOWN
    low, high = (amount(bound, verdict["unit"]) for bound in bounds)
    return f"{'-∞' if bounds[0] is None else low} … {'∞' if bounds[1] is None else high}"


def evidence(verdict: VerdictStatus) -> str:
    """Evidence against the canary, and where it trips."""
    if verdict["e_value"] is None:
        return UNKNOWN
    threshold = verdict["threshold"]
    return f"{verdict['e_value']:.3g}" + ("" if threshold is None else f" / {threshold:g}")


def samples(verdict: VerdictStatus) -> str:
    """Samples so far, how many more are needed, and how long that takes at the present rate."""
    needed, eta = verdict["needed"], verdict["eta_seconds"]
    if not needed:
        return f"{verdict['samples']} (enough in {duration(eta)})" if eta else str(verdict["samples"])
    more = f"{verdict['samples']}, {needed} more"
    return more if eta is None else f"{more} ({duration(eta)})"


def duration(seconds: float) -> str:
    """90 → '1m30s'."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def clock_time(at: float) -> str:
    """Local date and time of seconds since the epoch."""
    return datetime.fromtimestamp(at).strftime("%m-%d %H:%M:%S")


def _paths_table(paths: Sequence[PathStatus]) -> Table:
    table = _table("path", "role", ">ready", "draft", ">open", ">run", ">wait", ">KV", ">tok/s", ">accept")
    for path in paths:
        total = path["kv_total_tokens"]
        table.add_row(
            path["path"],
            path["role"],
            f"{path['replicas_ready']}/{path['replicas_wanted']}",
            _coloured(path["draft"], path["draft"]),
            str(path["in_flight"]),
            str(path["running"]),
            str(path["waiting"]),
            f"{path['kv_used_tokens'] / total:.0%}" if total else UNKNOWN,
            f"{path['tokens_per_second']:.1f}",
            UNKNOWN if path["acceptance"] is None else f"{path['acceptance']:.0%}",
        )
    return table


def _replicas_table(paths: Sequence[PathStatus]) -> Table:
    table = _table("path", "replica", ">pid", "draft", ">draft pid", ">running", ">waiting", ">seen")
    for path in paths:
        for replica in path["replicas"]:
            table.add_row(path["path"], *_replica_cells(replica))
    return table


def _replica_cells(replica: ReplicaStatus) -> tuple[str | Text, ...]:
    return (
        replica["replica_id"],
        str(replica["pid"]),
        _coloured(replica["draft"], replica["draft"]),
        UNKNOWN if replica["draft_pid"] is None else str(replica["draft_pid"]),
        str(replica["running"]),
        str(replica["waiting"]),
        f"{replica['age_seconds']:.1f}s ago",
    )


def _verdicts_table(verdicts: Sequence[VerdictStatus]) -> Table:
    table = _table("guardrail", "verdict", ">estimate", ">95 % interval", ">limit", ">evidence", ">samples", "reason")
    for verdict in verdicts:
        table.add_row(
            verdict["guardrail"],
            _coloured(verdict["level"], verdict["level"]),
            amount(verdict["estimate"], verdict["unit"]),
            interval(verdict),
            amount(verdict["limit"], verdict["unit"]),
            evidence(verdict),
            samples(verdict),
            verdict["reason"],
        )
    return table


def _table(*columns: str) -> Table:
    """A plain table; a leading '>' aligns the column right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=name not in _PROSE)
    return table


def _coloured(text: str, word: str) -> Text:
    return Text(text, style=_COLOURS.get(word, ""))


def _realised(rollout: RolloutStatus) -> str:
    """With what it is a share of: it counts begun requests, once all routers follow the weight."""
    share = rollout["weight_realised"]
    if share is None:
        return f"{UNKNOWN}, no request yet since all routers follow it"
    return f"{share:.1f} % of {rollout['requests_assigned']} requests since all routers follow it"
