"""`fleet bench`: measure where speculation pays, and compare two such measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from canary.evidence import changes
from deploy.connection import Token, Url, base_url, connect, fingerprints_in
from deploy.evidence.capture.reservoir import FEWEST_MEBIBYTES, MEBIBYTE
from deploy.output import Format, Output, console, print_json
from fleet.config import load_yaml, resolve_secret
from fleet.errors import ConfigError

ENDED_EARLY = 130
STALE = 2

app = typer.Typer(help="Measure where speculation pays, with intervals.", no_args_is_help=True)


@app.command()
def matrix(  # noqa: PLR0913 - one argument per option
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", help="matrix.yaml, or an earlier report.json; options below override it."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Base of the API; default: the file's, FLEET_URL, the local fleet's.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="The path to compare with.")] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="A path to judge; may be repeated.")] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests open; may be repeated. (Default: find.)")
    ] = None,
    rate: Annotated[list[float] | None, typer.Option(help="Requests begun per second; may be repeated.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Prompts, ShareGPT or captured requests.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Paired rounds of each cell.")] = None,
    requests: Annotated[int | None, typer.Option(help="Measured requests of each path in a round.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same requests.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The key, or 'env:NAME' or 'file:PATH'.")] = None,
    token: Token = None,
    folder: Annotated[Path, typer.Option("-o", "--output", help="Results; run again to go on.")] = Path("matrix"),
) -> None:
    """Judge candidates beside the baseline: load × sampling, interleaved, with intervals and a verdict per cell."""
    # Imports scipy and plotly: seconds that no other command should wait for.
    from deploy.evidence.config import parse_matrix
    from deploy.evidence.measure import measure, write_report
    from deploy.evidence.report import render_table

    load = {"concurrency": concurrency, "rate": rate}
    workload = {"prompts": prompts, "max_tokens": max_tokens}
    top = {
        "url": url,
        "baseline": baseline,
        "candidates": candidate,
        "rounds": rounds,
        "requests": requests,
        "seed": seed,
    }
    given = {**_set(top), "load": _set(load), "workload": _set(workload)}
    chosen = {"url": base_url()} | _merged(_keys_in(file) if file else {}, given)
    config = parse_matrix(chosen, str(file or "options"))
    measured = measure(config, folder, None if api_key is None else resolve_secret(api_key), token)
    write_report(measured.result, folder)
    console().print(render_table(measured.result))
    typer.echo(f"report: {folder / 'report.html'}")
    if measured.ended_early:
        typer.echo(f"ended early: {measured.ended_early}; the same command goes on where it stopped", err=True)
        raise typer.Exit(ENDED_EARLY)


@app.command()
def report(
    result_file: Annotated[Path, typer.Argument(help="A result folder, or its report.json.", exists=True)],
    folder: Annotated[Path, typer.Option("-o", "--output", help="Where the pages and tables go.")],
) -> None:
    """Make the pages of a result that came as report.json alone."""
    from deploy.evidence.measure import write_report
    from deploy.evidence.report import render_table
    from deploy.evidence.result import read_result

    result = read_result(result_file)
    folder.mkdir(parents=True, exist_ok=True)
    write_report(result, folder)
    console().print(render_table(result))
    typer.echo(f"report: {folder / 'report.html'}")


@app.command()
def capture(  # noqa: PLR0913 - one argument per option
    upstream: Annotated[
        str | None, typer.Option(help="Where requests are passed on to; default: FLEET_URL, the local fleet.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8100,
    minutes: Annotated[float, typer.Option(min=0.01, help="Ctrl-C ends it earlier.")] = 60.0,
    per_bucket: Annotated[int, typer.Option(min=1, max=10_000, help="Kept of each length and sampling mode.")] = 50,
    max_mib: Annotated[
        int, typer.Option(min=FEWEST_MEBIBYTES, max=1024, help="Kept at most, in MiB before encryption.")
    ] = FEWEST_MEBIBYTES,
    key: Annotated[str | None, typer.Option(help="Encrypts the file: 'env:NAME' or 'file:PATH'.")] = None,
    file: Annotated[Path, typer.Option("-o", "--output", help="Replaced by what is captured.")] = Path(
        "captured.jsonl"
    ),
) -> None:
    """Keep a representative, scrubbed slice of live requests: pass some of your traffic through here for a while."""
    from deploy.evidence.capture.serve import CapturePlan
    from deploy.evidence.capture.serve import capture as run_capture

    secret = None if key is None else resolve_secret(key)
    plan = CapturePlan(upstream or base_url(), host, port, per_bucket, max_mib * MEBIBYTE, minutes * 60, file, secret)
    address = f"http://{host}:{port}"
    reservoirs = run_capture(
        plan,
        on_start=lambda: typer.echo(f"pass requests through {address}; Ctrl-C ends and writes {file}"),
        on_trouble=lambda trouble: typer.echo(f"{trouble}; it is tried again", err=True),
    )
    for bucket, seen in sorted(reservoirs.seen.items()):
        typer.echo(f"{bucket}: kept {len(reservoirs.kept[bucket])} of {seen}")
    for reason, count in sorted(reservoirs.left_out.items()):
        typer.echo(f"left out {count}: {reason}")
    typer.echo(f"{file}: {sum(map(len, reservoirs.kept.values()))} requests")


@app.command(name="compare")
def compare_command(
    before: Annotated[Path, typer.Argument(help="A result folder, or its report.json.", exists=True)],
    after: Annotated[Path, typer.Argument(help="Another one.", exists=True)],
    output: Output = Format.TEXT,
) -> None:
    """Say what changed between two matrices and whether it is more than noise."""
    from deploy.evidence.compare import compare, remarks, render_comparison  # imports scipy
    from deploy.evidence.result import read_result

    old, new = read_result(before), read_result(after)
    comparison = compare(old, new)
    if output is Format.JSON:
        print_json(asdict(comparison))
        return
    console().print(render_comparison(comparison, old.objective))
    for line in remarks(comparison):
        typer.echo(line)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A result folder, or its report.json.", exists=True)],
    url: Url = None,
    token: Token = None,
    output: Output = Format.TEXT,
) -> None:
    """Say whether a matrix still speaks of the fleet that runs; exit code 2 where anything has changed."""
    from deploy.evidence.result import read_result
    from deploy.evidence.summary import renewal

    result = read_result(folder)
    if not any(result.fingerprints.values()):
        raise ConfigError(f"{folder} does not say which fleet it measured; measure again: {renewal(folder)}")
    with connect(url, token) as fleet:
        live = fingerprints_in(fleet.status())
    measured = {path for path, parts in result.fingerprints.items() if parts}
    changed, unseen = changes(result.fingerprints, live), sorted(measured - live.keys())
    if not measured & live.keys():
        raise ConfigError(f"nothing to compare with: {', '.join(unseen)} of {folder} are not running in this fleet")
    if output is Format.JSON:
        print_json({"is_stale": bool(changed), "changes": changed, "not_running": unseen, "renew": renewal(folder)})
    else:
        for line in (*changed, *(f"{path}: not running, so nothing is known of it" for path in unseen)):
            typer.echo(line)
        unchanged = f"{folder}: nothing has changed" + (" in what is running" if unseen else "")
        typer.echo(f"stale; renew it: {renewal(folder)}" if changed else unchanged)
    if changed:
        raise typer.Exit(STALE)


def _keys_in(file: Path) -> Mapping[str, Any]:
    """Those of a matrix.yaml, or those that a report was measured by."""
    from deploy.evidence.result import read_result

    return read_result(file).config if file.suffix == ".json" else load_yaml(file)


def _set(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _merged(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The file's keys, overridden by those given, section by section."""
    merged = dict(file)
    for key, value in given.items():
        present = merged.get(key)
        if isinstance(value, dict):
            if isinstance(present, dict):
                merged[key] = {**present, **value}
            elif value:
                merged[key] = value
        else:
            merged[key] = value
    return merged
