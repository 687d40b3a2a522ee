"""The `fleet` command: run a fleet on this machine, look at it, and check and generate its configs."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deploy import canary_cli, local_fleet, train_cli
from deploy.bench.load import load_command
from deploy.check_cli import check_command
from deploy.connection import Token, Url, address, connect
from deploy.evidence import commands as evidence_commands
from deploy.fleet_state import LOG_FILE, FleetState, Phase, is_running, read_state
from deploy.lint import lint_fleet, require_clean
from deploy.manifest import render_manifest
from deploy.output import Format, Output, console, print_json
from deploy.planning.command import plan_command
from deploy.render import fleet_view, starting_view
from fleet.config import FleetConfig, load_fleet_config, load_yaml, state_folder
from fleet.errors import FleetError

DEFAULT_CONFIG = Path(__file__).parent / "manifests" / "fleet.yaml"
USAGE = 2

app = typer.Typer(
    help="Serve a model over several paths and roll speculative decoding out and back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(canary_cli.app, name="canary")
app.add_typer(evidence_commands.app, name="bench")
app.add_typer(train_cli.app, name="train")
app.command(name="load")(load_command)
app.command(name="check")(check_command)
app.command(name="plan")(plan_command)

ConfigFile = Annotated[Path, typer.Option("-f", "--file", help="The fleet's config.", exists=True, dir_okay=False)]


@app.command()
def up(
    file: ConfigFile = DEFAULT_CONFIG,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the fleet answers.")] = False,
) -> None:
    """Start the fleet on this machine; it runs until Ctrl-C, or with --detach until `fleet down`."""
    config = _checked_config(file)
    folder = state_folder()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _interrupt)
    messages = Console(stderr=True)
    started = local_fleet.start(config, file, folder)
    is_left_running = False
    try:
        with Live(starting_view(started), console=messages, transient=True) as live:
            ready = local_fleet.follow(started, folder, _shower(live, messages))
        typer.echo(welcome(ready, config, is_left_running=detach))
        is_left_running = detach
        if not detach and not local_fleet.wait_until_stopped(started, folder):
            raise local_fleet.HostFailed(f"the fleet's host process was killed; see {folder / LOG_FILE}", 1)
    except KeyboardInterrupt:
        messages.print("stopping the fleet")
    finally:
        if not is_left_running:
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(name, signal.SIG_IGN)
            local_fleet.stop(folder)


@app.command()
def down() -> None:
    """Stop the fleet that runs on this machine, every process of it."""
    was_running = local_fleet.stop(state_folder())
    typer.echo("fleet stopped" if was_running else "no fleet is running")


@app.command()
def status(url: Url = None, token: Token = None, output: Output = Format.TEXT) -> None:
    """Show paths, replicas, draft health, weights and load."""
    state = read_state(state_folder())
    if url is None and state is not None and state.phase != Phase.READY and is_running(state_folder()):
        console().print(starting_view(state))
        return
    with connect(url, token) as fleet:
        answer = fleet.status()
        if output is Format.JSON:
            print_json(answer)
            return
        console().print(Text(f"fleet at {fleet.url}"), fleet_view(answer), sep="\n")


@app.command()
def dashboard(
    url: Url = None,
    token: Token = None,
    is_opened: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
) -> None:
    """Print a link to the dashboard that signs in: the token stands behind '#', which browsers do not send."""
    target, known = address(url, token)
    link = f"{target}/dashboard" + (f"#{urlencode({'token': known})}" if known else "")
    typer.echo(link)
    if is_opened:
        typer.launch(link)


@app.command()
def manifest(
    file: ConfigFile = DEFAULT_CONFIG,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write here instead of to stdout.")] = None,
) -> None:
    """Generate the config for `serve deploy` from a fleet config."""
    config = _checked_config(file)
    if output is None:
        typer.echo(render_manifest(config), nl=False)
    else:
        output.write_text(render_manifest(config, output.name))
        typer.echo(f"wrote {output}")


@app.command()
def lint(file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Check a fleet.yaml or serve.yaml strictly; Ray Serve itself ignores keys that it does not know."""
    value = load_yaml(file)
    if "applications" in value:
        from deploy.serve_lint import lint_serve  # imports Ray

        require_clean(file, lint_serve(value))
    else:
        require_clean(file, lint_fleet(value))
    typer.echo(f"{file}: ok")


def main() -> None:
    """Run the command; whatever is wrong is one line on stderr."""
    try:
        app()
    except FleetError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", USAGE))


def _checked_config(file: Path) -> FleetConfig:
    require_clean(file, lint_fleet(load_yaml(file)))
    return load_fleet_config(file)


def _shower(live: Live, console: Console) -> Callable[[FleetState], None]:
    """Update the live view; where there is no terminal, print each new message as a line."""
    messages: list[str] = []

    def show(state: FleetState) -> None:
        live.update(starting_view(state))
        if not console.is_terminal and state.phase == Phase.STARTING and state.message not in messages:
            messages.append(state.message)
            console.print(state.message, soft_wrap=True)

    return show


def welcome(state: FleetState, config: FleetConfig, *, is_left_running: bool) -> str:
    """What is said once the fleet answers: where it is, a first request, and what to do next."""
    body = {"model": state.model, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": True}
    key = " -H 'authorization: Bearer KEY'" if config.router.api_keys else ""
    return "\n".join(
        (
            f"the fleet answers at {state.url}/v1  model {state.model}  paths {', '.join(config.paths)}",
            "",
            f"  curl -N {state.url}/v1/chat/completions -H 'content-type: application/json'{key} \\",
            f"    -d '{json.dumps(body)}'",
            "",
            f"  dashboard    {state.url}/dashboard  (`fleet dashboard` prints a link that signs in)",
            f"  metrics      {state.url}/metrics",
            "  fleet        fleet status",
            "  roll out     fleet canary start -f deploy/manifests/plan.yaml && fleet canary status -w",
            "  stop         fleet down" if is_left_running else "  stop         Ctrl-C, or fleet down",
        )
    )


def _interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
