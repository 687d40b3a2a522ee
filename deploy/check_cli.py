"""`fleet check`: are target and proposer of each path made for each other? Exit code 0 for yes, 2 for no."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.lint import lint_fleet, require_clean
from deploy.output import Format, Output, console, print_json
from fleet.config import FleetConfig, ModelConfig, load_fleet_config, load_yaml
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from replicas.compatibility.check import Pair
    from replicas.compatibility.findings import Finding, PairReport

DEFAULT_CONFIG = Path(__file__).parent / "manifests" / "fleet.yaml"
REFUSED = 2


def check_command(
    file: Annotated[
        Path, typer.Option("-f", "--file", help="The fleet's config.", exists=True, dir_okay=False)
    ] = DEFAULT_CONFIG,
    path: Annotated[str | None, typer.Option("--path", help="Only this path.")] = None,
    target: Annotated[str | None, typer.Option(help="Check this model instead of a config's.")] = None,
    proposer: Annotated[str | None, typer.Option(help="With --target: METHOD:MODEL.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Compare target and proposer by content, before anything is loaded: tokenizer, template, context, head shapes."""
    from replicas.compatibility.check import check_pair  # imports torch

    pairs = _given(target, proposer) if target or proposer else _configured(file, path)
    reports = {name: check_pair(pair, lambda line: typer.echo(line, err=True)) for name, pair in pairs.items()}
    if output is Format.JSON:
        print_json([{"path": name, "is_ok": report.is_ok} | asdict(report) for name, report in reports.items()])
    else:
        console().print(reports_view(reports))
    if not all(report.is_ok for report in reports.values()):
        raise typer.Exit(REFUSED)


def _configured(file: Path, only: str | None) -> dict[str, Pair]:
    from replicas.compatibility.check import pair_of

    require_clean(file, lint_fleet(load_yaml(file)))
    config: FleetConfig = load_fleet_config(file)
    if only is not None and only not in config.paths:
        raise ConfigError(f"{file} has no path '{only}'; it has {', '.join(config.paths)}")
    return {
        name: pair_of(config.model, path.speculative)
        for name, path in config.paths.items()
        if path.speculative is not None and only in (None, name)
    }


def _given(target: str | None, proposer: str | None) -> dict[str, Pair]:
    from replicas.compatibility.check import Pair

    method, _, model = (proposer or "").partition(":")
    if not target or not method or not model:
        raise ConfigError("give both: --target MODEL --proposer METHOD:MODEL")
    return {"given": Pair(ModelConfig(model=target), method, model)}


def reports_view(reports: Mapping[str, PairReport]) -> RenderableType:
    """One table for each pair, and what to do about what was refused."""
    if not reports:
        return Text("no path speculates: there is nothing to compare")
    return Group(*(part for name, report in reports.items() for part in _report_view(name, report)))


def _report_view(name: str, report: PairReport) -> Iterator[RenderableType]:
    word = Text("ok", style="green") if report.is_ok else Text("refused", style="bold red")
    yield Text.assemble(f"path '{name}': {report.proposer or report.method} for {report.target}: ", word)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("compared", "target", "proposer", "", "reason"):
        table.add_column(column, no_wrap=column != "reason")
    for finding in report.findings:
        table.add_row(finding.what, finding.target, finding.proposer, *_answer(finding))
    yield table


def _answer(finding: Finding) -> tuple[Text, str]:
    if finding.is_ok:
        return Text("ok", style="green"), finding.note or ""
    return Text("refused", style="bold red"), f"{finding.problem}: {finding.remedy}"
