"""`fleet canary aa`: may the judge act alone on this traffic?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from canary.plan import read_plan
from deploy.output import Format, Output, console, print_json
from deploy.plan_file import read_plan_file
from deploy.render import duration

if TYPE_CHECKING:
    from canary.calibration import Calibration

FIT, UNFIT, UNDECIDED = 0, 3, 5
_TOLD = {
    "fit": "fit to act alone: at most {alpha:.0%} of A/A rollouts are taken back; set window: {window}",
    "unfit": "not fit to act alone: more than {alpha:.0%} of A/A rollouts are taken back with every window tried",
    "undecided": "not known to be fit: more runs, or a longer record, may tell",
}


def calibrate_record(
    events: Annotated[Path, typer.Option("--events", help="An exported journal.", exists=True, dir_okay=False)],
    file: Annotated[Path, typer.Option("-f", "--file", help="The plan to try.", exists=True, dir_okay=False)],
    arm: Annotated[str, typer.Option(help="control, or canary where both paths were set up alike.")] = "control",
    runs: Annotated[int, typer.Option(min=20, max=100_000, help="A/A rollouts for each window.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    output: Output = Format.TEXT,
) -> None:
    """Judge many A/A rollouts made of recorded windows: how often would a canary that is no different go back?

    Exit code 0 where the rate is at most the plan's alpha, 3 where it is above, 5 where that cannot be told.
    """
    # Every command line begins by importing this file; the statistics take a second.
    from canary.calibration import Arm, calibrate, twins
    from canary.record import read_records, steady_windows
    from fleet.errors import ConfigError

    if arm not in tuple(Arm):
        raise ConfigError(f"--arm {arm}: write {' or '.join(Arm)}")
    plan = read_plan(read_plan_file(file))
    windows = twins(steady_windows(read_records(events), skip=plan.warmup_windows), Arm(arm))
    found = calibrate(plan, windows, runs=runs, seed=seed)
    if output is Format.JSON:
        print_json(asdict(found))
    else:
        console().print(calibration_view(found))
    raise typer.Exit({"fit": FIT, "unfit": UNFIT}.get(found.fitness.value, UNDECIDED))


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
    return Group(table, Text(size), Text(told))
