"""A rollout's record leaves the fleet as JSON lines, and is judged again, offline, with other limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from canary.status import ExportedEvent
from deploy.admin_client import AdminClient
from deploy.output import Format, Output, console, print_json
from deploy.plan_file import read_plan_file
from deploy.render import duration
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from canary.closeness import Closest
    from canary.simulation import Simulation, Turn

Record = typer.Option("--events", help="What `fleet canary export` wrote.", exists=True, dir_okay=False)
PlanFile = Annotated[Path | None, typer.Option("-f", "--plan", help="Another plan.", exists=True, dir_okay=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="One change to the plan, such as guardrails.itl_p95.max_increase=5%; repeatable."),
]


def export_record(fleet: AdminClient, rollout: str | None, file: Path) -> int:
    """Write a rollout's whole record, one event a line, to a file or (`-`) to stdout; how many events it has."""
    # Every command line begins by importing this file; the statistics behind a record take a second.
    from canary.record import open_text

    try:
        with nullcontext(sys.stdout) if str(file) == "-" else open_text(file, "wt") as out:
            return sum(_write(out, event) for event in _recorded_events(fleet, rollout))
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error


def _write(out: TextIO, event: ExportedEvent) -> int:
    out.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
    return 1


def _recorded_events(fleet: AdminClient, rollout: str | None) -> Iterator[ExportedEvent]:
    after = 0
    while page := fleet.command("export", {"after": after, "rollout": rollout}).get("record"):
        yield from page
        # The latest rollout may be another one by the time of the next page.
        after, rollout = page[-1]["id"], page[-1]["rollout"]


def simulate_record(
    events: Annotated[Path, Record],
    plan: PlanFile = None,
    changes: Changes = None,
    rollout: Annotated[str | None, typer.Option(help="Which rollout of the file; default: the last.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Judge a recorded rollout again, offline: when would it have ended, and how? Needs no fleet."""
    from canary.record import plan_of, read_record
    from canary.simulation import simulate

    record = read_record(events, rollout)
    found = simulate(record, _other_plan(plan_of(record), plan, changes or []))
    if output is Format.JSON:
        print_json(asdict(found))
    else:
        console().print(simulation_view(found))


def _other_plan(recorded: Mapping[str, Any], file: Path | None, changes: list[str]) -> Mapping[str, Any] | None:
    """The plan to judge by; None for the record's own."""
    if file is None and not changes:
        return None
    plan = read_plan_file(file) if file else recorded
    for change in changes:
        plan = changed(plan, change)
    return plan


def changed(plan: Mapping[str, Any], change: str) -> Mapping[str, Any]:
    """The plan with one dotted key set. Raises ConfigError where the change cannot be read."""
    path, is_set, text = change.partition("=")
    if not is_set or not all(path.split(".")):
        raise ConfigError(f"--set {change}: write KEY=VALUE, such as guardrails.itl_p95.max_increase=5%")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {change}: the value is not YAML") from error
    return _with(plan, path.split("."), value)


def _with(plan: Mapping[str, Any], path: list[str], value: Any) -> Mapping[str, Any]:
    key, *deeper = path
    inner = plan.get(key)
    return {**plan, key: _with(inner if isinstance(inner, Mapping) else {}, deeper, value) if deeper else value}


def simulation_view(found: Simulation) -> RenderableType:
    """Both courses, one beside the other's end."""
    parts: list[RenderableType] = [
        _line("recorded", found.recorded[-1], found),
        _line("simulated", found.simulated[-1], found),
    ]
    if found.parted is None:
        parts.append(Text("every decision is the recorded one"))
    else:
        parts.append(Text(f"they part after {duration(found.parted)}; the simulated one:"))
        parts += [Text(f"{duration(turn.seconds):>9} {turn.weight:>5g} %  {turn.told}") for turn in found.simulated]
    parts += [Text(f"left out, as it no longer fitted: {refusal}") for refusal in found.left_out]
    parts += [Text(line) for line in (agreement_line(found), closest_line(found)) if line]
    return Group(*parts)


def agreement_line(found: Simulation) -> str:
    """Which guardrails end with the recorded verdict, and which do not."""
    recorded = {answer.guardrail: answer.level for answer in found.recorded_answers}
    same = [answer for answer in found.answers if recorded.get(answer.guardrail) == answer.level]
    others = [
        f"{answer.guardrail} {answer.level} instead of {recorded.get(answer.guardrail, 'not judged')}"
        for answer in found.answers
        if answer not in same
    ]
    gone = [f"{name} no longer judged" for name in recorded if name not in {a.guardrail for a in found.answers}]
    differing = "; ".join([*others, *gone])
    told = f"verdicts at the end: {len(same)} of {len(found.answers)} as recorded"
    if differing:
        return f"{told}; {differing}"
    return f"{told} ({', '.join(f'{answer.guardrail} {answer.level}' for answer in same)})"


def closest_line(found: Simulation) -> str:
    """How near the nearest guardrail came to tripping; empty where none weighs evidence."""
    nearest = found.answers[0]
    if nearest.closest is None:
        return ""
    before = next((a.closest for a in found.recorded_answers if a.guardrail == nearest.guardrail), None)
    told = f"nearest to tripping: {nearest.guardrail} with {_evidence(nearest.closest)}"
    return told if before is None or before == nearest.closest else f"{told}; as recorded {_evidence(before)}"


def _evidence(closest: Closest) -> str:
    return f"evidence {closest.e_value:.3g} of {closest.threshold:.3g} after {duration(closest.seconds)}"


def _line(name: str, last: Turn, found: Simulation) -> Text:
    if last.state in ("promoted", "rolled_back", "aborted"):
        return Text(f"{name}: {last.state} after {duration(last.seconds)}: {last.told}")
    return Text(f"{name}: still {last.state} at {last.weight:g} % when the record ends after {duration(found.seconds)}")
