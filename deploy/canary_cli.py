"""`fleet canary …`: roll a path out and back, and see why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live

from canary.plan import read_plan
from canary.status import CommandAnswer, FleetStatus, RolloutStatus
from deploy.admin_client import AdminClient
from deploy.calibration_cli import calibrate_record
from deploy.connection import Token, Url, connect
from deploy.explain_view import explanation_view
from deploy.lint import require_clean
from deploy.output import Format, Output, console, print_json
from deploy.plan_file import read_plan_file
from deploy.record_cli import export_record, simulate_record
from deploy.render import history_view, outlook_lines, rollout_line, rollout_view, rollouts_view
from fleet.errors import NotFound, Unavailable

REFRESH_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
"""How long watching goes on while the fleet does not answer."""
DONE, ROLLED_BACK, TIMED_OUT, HELD = 0, 3, 4, 5
ENDED = ("promoted", "rolled_back", "aborted")

app = typer.Typer(help="Roll a path out and back.", no_args_is_help=True)

app.command("aa")(calibrate_record)

PlanFile = Annotated[Path, typer.Option("-f", "--file", help="The rollout plan.", exists=True, dir_okay=False)]
Evidence = Annotated[
    Path | None, typer.Option("--evidence", help="Folder of a load matrix that the rollout rests on.", exists=True)
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Follow the rollout until it ends.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to follow it at most.")]


@app.command()
def start(  # noqa: PLR0913 - one argument per option
    file: PlanFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan against the fleet, start nothing.")
    ] = False,
    manual: Annotated[
        bool, typer.Option("--manual", help="Decide yourself: steps wait for `promote`, failing comparisons only hold.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the rollout until it ends.")] = False,
    timeout: Timeout = None,
    evidence: Evidence = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Start the rollout in a plan file."""
    plan = read_plan_file(file, evidence) | ({"mode": "manual"} if manual else {})
    with connect(url, token) as fleet:
        answer = fleet.command("start", {"plan": plan, "dry_run": dry_run})
        _confirm(answer)
        if wait and not dry_run:
            raise typer.Exit(_watch(fleet, timeout))


@app.command()
def status(
    watch: Watch = False, timeout: Timeout = None, url: Url = None, token: Token = None, output: Output = Format.TEXT
) -> None:
    """Show the rollout, or with -w follow it until it ends.

    Exit codes: 0 ok (with -w: promoted), 2 usage, 3 rolled back or aborted, 4 timeout, 5 held without enough data.
    """
    with connect(url, token) as fleet:
        if watch:
            code = _watch(fleet, timeout, show=output is Format.TEXT)
        rollout = _rollout(fleet.status())
        if output is Format.JSON:
            print_json(rollout)
        elif not watch:
            console().print(rollout_view(rollout))
        raise typer.Exit(code if watch else exit_code(rollout))


@app.command("list")
def list_rollouts(url: Url = None, token: Token = None, output: Output = Format.TEXT) -> None:
    """List all rollouts."""
    with connect(url, token) as fleet:
        rollouts = fleet.command("list").get("rollouts", [])
        _show(rollouts, rollouts_view(rollouts), output)


@app.command()
def history(
    rollout: Annotated[str | None, typer.Option(help="Which rollout; default: the latest.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest events.")] = 200,
    windows: Annotated[bool, typer.Option("--windows", help="Windows that changed nothing too.")] = False,
    url: Url = None,
    token: Token = None,
    output: Output = Format.TEXT,
) -> None:
    """Show what happened in a rollout, with the numbers that decided."""
    arguments: dict[str, Any] = {"limit": limit, "windows": windows} | ({"rollout": rollout} if rollout else {})
    with connect(url, token) as fleet:
        events = fleet.command("history", arguments).get("events", [])
        _show(events, history_view(events), output)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to; - is stdout.")],
    rollout: Annotated[str | None, typer.Option(help="Which rollout; default: the latest.")] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Write everything recorded of a rollout as JSON lines, for `simulate` and for keeping."""
    with connect(url, token) as fleet:
        typer.echo(f"{export_record(fleet, rollout, file)} events written to {file}", err=True)


@app.command()
def explain(
    guardrail: Annotated[str, typer.Argument(help="Such as itl_p95; `fleet canary status` lists them.")],
    url: Url = None,
    token: Token = None,
    output: Output = Format.TEXT,
) -> None:
    """Say how a guardrail comes to its verdict: question, test, numbers, what is still needed."""
    with connect(url, token) as fleet:
        found = fleet.command("explain", {"guardrail": guardrail})["explanation"]
        _show(found, explanation_view(found), output)


@app.command()
def pause(url: Url = None, token: Token = None) -> None:
    """Stop the bake clock; guardrails go on watching."""
    _send("pause", {}, url, token)


@app.command()
def resume(url: Url = None, token: Token = None) -> None:
    """Go on after a pause."""
    _send("resume", {}, url, token)


@app.command()
def promote(
    full: Annotated[
        bool, typer.Option("--full", help="Skip all remaining steps; of a promoted canary, end the holdback.")
    ] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Go to the next step now."""
    _send("promote", {"full": full}, url, token)


@app.command()
def abort(
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    by: Annotated[str, typer.Option(envvar="USER", help="Who; kept in the history.")] = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """Take the canary to 0 % at once."""
    _send("abort", {"reason": reason, "by": by}, url, token)


@app.command()
def retry(url: Url = None, token: Token = None) -> None:
    """Start the last rollout again, with fresh evidence."""
    _send("retry", {}, url, token)


@app.command("set-weight")
def set_weight(
    weight: Annotated[float, typer.Argument(min=0, max=100, help="Percent of eligible requests.")],
    url: Url = None,
    token: Token = None,
) -> None:
    """Give the canary this share within the present step."""
    _send("set-weight", {"weight": weight}, url, token)


@app.command()
def lint(file: PlanFile, evidence: Evidence = None, url: Url = None, token: Token = None) -> None:
    """Check a plan: by itself, and against the fleet where one answers."""
    plan = read_plan_file(file, evidence)
    with connect(url, token) as fleet:
        try:
            answer = fleet.command("lint", {"plan": plan})
        except Unavailable:
            # Every command line begins by importing this file; the statistics behind a plan take a second.
            from canary.outlook import outlook

            typer.echo(f"{file}: ok by itself; no fleet answers at {fleet.url} to check it against")
            _tell_outlook(CommandAnswer(outlook=outlook(read_plan(plan), None)))
            return
    require_clean(file, answer.get("errors", []))
    for warning in answer.get("warnings", []):
        typer.echo(f"{file}: warning: {warning}")
    typer.echo(f"{file}: ok")
    _tell_outlook(answer)


app.command("simulate")(simulate_record)


def exit_code(rollout: RolloutStatus, *, timed_out: bool = False) -> int:
    """0 ok (of a rollout that was followed: promoted), 3 rolled back or aborted, 4 timeout, 5 held without enough data.

    `timed_out` is of following only; where what it waited for is data, that goes before the time.
    """
    state = rollout["state"]
    if state in ("rolled_back", "aborted"):
        return ROLLED_BACK
    if state == "holding" or (timed_out and rollout["waiting_for"] is not None):
        return HELD
    return TIMED_OUT if timed_out and state != "promoted" else DONE


def _watch(fleet: AdminClient, timeout: float | None, *, show: bool = True) -> int:
    """Follow the rollout until it ends or time is up; returns the exit code."""
    ends_at = None if timeout is None else time.monotonic() + timeout
    answered_at = time.monotonic()
    rollout: RolloutStatus | None = None
    with Live(console=console(), auto_refresh=False, transient=not show) as live:
        while True:
            try:
                rollout = _rollout(fleet.status())
                answered_at = time.monotonic()
            except Unavailable:
                if time.monotonic() - answered_at > PATIENCE_SECONDS:
                    raise
            if rollout is not None and show:
                live.update(rollout_view(rollout), refresh=True)
            if rollout is not None and rollout["state"] in ENDED:
                return exit_code(rollout)
            if ends_at is not None and time.monotonic() >= ends_at:
                return TIMED_OUT if rollout is None else exit_code(rollout, timed_out=True)
            time.sleep(REFRESH_SECONDS)


def _send(command: str, arguments: dict[str, Any], url: str | None, token: str | None) -> None:
    with connect(url, token) as fleet:
        _confirm(fleet.command(command, arguments))


def _confirm(answer: CommandAnswer) -> None:
    for warning in answer.get("warnings", []):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(answer.get("message") or rollout_line(answer["rollout"]))
    _tell_outlook(answer)


def _tell_outlook(answer: CommandAnswer) -> None:
    for line in outlook_lines(answer["outlook"]) if "outlook" in answer else ():
        typer.echo(f"  {line}")


def _rollout(status: FleetStatus) -> RolloutStatus:
    rollout = status["rollout"]
    if rollout is None:
        raise NotFound("there has been no rollout yet; start one with `fleet canary start -f plan.yaml`")
    return rollout


def _show(value: object, view: RenderableType, output: Format) -> None:
    if output is Format.JSON:
        print_json(value)
    else:
        console().print(view)
