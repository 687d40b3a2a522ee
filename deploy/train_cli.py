"""`fleet train …`: one command per kind of proposer, with one option per setting."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from deploy.output import console
from deploy.train.prompts import read_prompts
from deploy.train.settings import DraftSettings, Eagle3Settings, EagleSettings, MedusaSettings, TrainSettings
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from deploy.train.trainee import Method  # imports torch

INTERRUPTED = 130
Settings = TypeVar("Settings", bound=TrainSettings)

app = typer.Typer(help="Train a proposer on the target's own answers.", no_args_is_help=True)


def read_settings(kind: type[Settings], options: dict[str, Any]) -> Settings:
    """The settings of a command line; ConfigError naming every option that is wrong."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        # Where an item of a list is wrong, pydantic says so of the list too.
        first = {item["loc"][0]: item["msg"] for item in reversed(error.errors())}
        parts = [f"{_option(str(name))}: {message}" for name, message in reversed(first.items())]
        raise ConfigError("; ".join(parts)) from error


def require_prompts(settings: TrainSettings) -> None:
    """Refuse at once, before a model is loaded for it, what can teach nothing: no prompts, or none that can be read."""
    if not settings.prompts and not settings.generate:
        raise ConfigError("nothing to train on: give --prompts FILE or --generate N")
    for file in (*settings.prompts, *settings.held_out_prompts):
        if not any(True for _ in read_prompts(file)):
            raise ConfigError(f"{file} holds no prompts")


def command(kind: type[Settings], act: Callable[[Settings, str], None]) -> Callable[..., None]:
    """A function for typer whose options are the fields of the settings."""

    def run(**options: Any) -> None:
        settings = read_settings(kind, options)
        require_prompts(settings)
        if settings.dry_run:
            typer.echo(f"dry run: loads {settings.target} and times a little of the work; trains nothing", err=True)
        try:
            act(settings, shlex.join(("fleet", *sys.argv[1:])))
        except KeyboardInterrupt as interrupt:
            typer.echo("stopped; the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt

    parameters = [_parameter(name, field) for name, field in kind.model_fields.items()]
    cast(Any, run).__signature__ = inspect.Signature(parameters)
    return run


def _draft(settings: DraftSettings, command_line: str) -> None:
    from deploy.train.draft import Draft  # imports torch

    _train(Draft(settings), settings, command_line)


def _eagle(settings: EagleSettings, command_line: str) -> None:
    from deploy.train.eagle import Eagle  # imports torch

    _train(Eagle(settings), settings, command_line)


def _eagle3(settings: Eagle3Settings, command_line: str) -> None:
    from deploy.train.eagle3 import Eagle3  # imports torch

    _train(Eagle3(settings), settings, command_line)


def _medusa(settings: MedusaSettings, command_line: str) -> None:
    from deploy.train.medusa import Medusa  # imports torch

    _train(Medusa(settings), settings, command_line)


def _train(method: Method, settings: TrainSettings, command_line: str) -> None:
    from deploy.train.run import train  # imports torch
    from deploy.train.screen import Screen

    train(method, settings, Screen(console()), command_line)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind: Any = field.annotation
    default = field.default
    if get_origin(kind) is tuple:
        kind, default = cast(Any, list)[_plain(get_args(kind)[0])], list(default)
    option = typer.Option(_option(name), help=field.description)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else default,
        annotation=Annotated[kind, option],
    )


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


app.command("draft", help=DraftSettings.__doc__)(command(DraftSettings, _draft))
app.command("eagle", help=EagleSettings.__doc__)(command(EagleSettings, _eagle))
app.command("eagle3", help=Eagle3Settings.__doc__)(command(Eagle3Settings, _eagle3))
app.command("medusa", help=MedusaSettings.__doc__)(command(MedusaSettings, _medusa))
