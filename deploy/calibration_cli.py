"""`fleet canary aa`: may the judge act alone on this traffic?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from canary.plan import read_plan
from deploy.admin_client import AdminClient
from deploy.connection import Token, Url, connect
from deploy.output import Format, Output, console, print_json
from deploy.plan_file import read_plan_file
from deploy.record_cli import export_record
from deploy.render import duration
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from canary.calibration import Calibration
    from canary.record import Recorded

FIT, UNFIT, UNDECIDED = 0, 3, 5
_NOT_KEPT = "not kept, as it is from a file: without --events the fleet's own journal is judged, and `start` heeds that"
_TOLD = {
    "fit": "fit to act alone: at most {alpha:.0%} of A/A rollouts are taken back; set window: {window}",
    "unfit": "not fit to act alone: more than {alpha:.0%} of A/A rollouts are taken back with every window tried",
    "undecided": "not known to be fit: more runs, or a longer record, may tell",
}


def calibrate_record(  # noqa: PLR0913 - one argument per option
    file: Annotated[Path, typer.Option("-f", "--file", help="The plan to try.", exists=True, dir_okay=False)],
    events: Annotated[
        Path | None,
        typer.Option("--events", help="An exported journal; default: the fleet's.", exists=True, dir_okay=False),
    ] = None,
    rollout: Annotated[
        str | None, typer.Option(help="Whose record; default: the fleet's latest, all of a file.")
    ] = None,
    arm: Annotated[str, typer.Option(help="control, or canary where both paths were set up alike.")] = "control",
    runs: Annotated[int, typer.Option(min=20, max=100_000, help="A/A rollouts for each window.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    url: Url = None,
    token: Token = None,
    output: Output = Format.TEXT,
) -> None:
    """Judge many A/A rollouts made of recorded windows: how often would a canary that is no different go back?

    What is found in the fleet's own journal is kept there, and `start` refuses a plan that is not fit to act alone.
    Exit code 0 where the rate is at most the plan's alpha, 3 where it is above, 5 where that cannot be told.
    """
    # Every command line begins by importing this file; the statistics take a second.
    from canary.calibration import Arm, calibrate, twins
    from canary.record import read_record, read_records, steady_windows

    if arm not in tuple(Arm):
        raise ConfigError(f"--arm {arm}: write {' or '.join(Arm)}")
    raw = read_plan_file(file)
    plan = read_plan(raw)

    def judged(record: Sequence[Recorded]) -> Calibration:
        return calibrate(plan, twins(steady_windows(record, skip=plan.warmup_windows), Arm(arm)), runs=runs, seed=seed)

    if events is None:
        with connect(url, token) as fleet, TemporaryDirectory() as folder:
            record_file = Path(folder) / "record.jsonl"
            export_record(fleet, rollout, record_file)
            record = read_record(record_file)
            found = judged(record)
            kept = _kept(fleet, raw, record[0].rollout, found)
    else:
        found = judged(read_records(events) if rollout is None else read_record(events, rollout))
        kept = _NOT_KEPT
    if output is Format.JSON:
        print_json(asdict(found))
    else:
        console().print(Group(calibration_view(found), Text(kept)))
    raise typer.Exit({"fit": FIT, "unfit": UNFIT}.get(found.fitness.value, UNDECIDED))


def _kept(fleet: AdminClient, plan: Mapping[str, Any], rollout: str, found: Calibration) -> str:
    """Give the result to the fleet's journal; what it says."""
    tried = [{key: value for key, value in asdict(rate).items() if key != "by_guardrail"} for rate in found.rates]
    result = {"rollout": rollout, "tried": tried, "chosen_seconds": found.chosen_seconds, "untried": found.untried}
    return fleet.command("calibrated", {"plan": plan} | result)["message"]


def calibration_view(found: Calibration) -> RenderableType:
    """The rate for each window that was tried, and what follows."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("window", "A/A rollouts", "taken back", "rate", "95 % bounds", "by"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for rate in found.rates:
        table.add_row(
            duration(rate.window_seconds),
            str(rate.runs),
            str(rate.rollbacks),
            f"{rate.rollbacks / rate.runs:.1%}",
            f"{rate.lower:.1%} … {rate.upper:.1%}",
            ", ".join(f"{name} {count}" for name, count in sorted(rate.by_guardrail.items())),
        )
    chosen = "" if found.chosen_seconds is None else duration(found.chosen_seconds)
    told = _TOLD[found.fitness.value].format(alpha=found.alpha, window=chosen)
    size = f"from {found.recorded_windows} recorded windows, {found.lengths:.1f} times the planned rollout"
    return Group(table, Text(size), Text(told), *(Text(line) for line in _left_out(found)))


def _left_out(found: Calibration) -> Iterator[str]:
    if found.untried:
        names = ", ".join(found.untried)
        yield f"not tried: {names}; the record says nothing of what they watch (two paths set up alike: --arm canary)"
