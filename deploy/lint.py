"""Is a fleet config exactly what its author meant? Unknown keys are errors at every level."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fleet.config import FleetConfig, problems_in
from fleet.errors import ConfigError


def lint_fleet(value: Mapping[str, Any]) -> list[str]:
    """What is wrong with a fleet config, one line each; empty when it is right."""
    if "steps" in value and "paths" not in value:
        return ["this is the plan of a rollout, not a fleet; check it with `fleet canary lint -f`"]
    problems = list(unknown_keys(value, FleetConfig))
    try:
        return problems + _bundle_problems(FleetConfig.model_validate(known_part(value, FleetConfig)))
    except ValidationError as error:
        return problems + problems_in(error)


def require_plan(path: Path, value: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a file is no rollout plan at all, rather than one with mistakes."""
    if "steps" in value or not value.keys() & {"paths", "applications"}:
        return
    raise ConfigError(
        f"{path} describes a fleet, not a rollout; check it with `fleet lint -f`. "
        "A plan has 'stable', 'canary' and 'steps', see deploy/manifests/plan.yaml"
    )


def unknown_keys(value: Any, annotation: Any, where: str = "") -> Iterator[str]:
    """Keys in `value` that the annotated type has no field for, at any depth, each with the nearest known key."""
    model = _model_in(annotation)
    if isinstance(value, Mapping):
        if model is not None:
            yield from _unknown_fields(value, model, where)
        elif inner := _argument_of(annotation, dict, 1):
            for key, item in value.items():
                yield from unknown_keys(item, inner, join(where, key))
    elif isinstance(value, list) and (inner := _argument_of(annotation, list, 0)):
        for index, item in enumerate(value):
            yield from unknown_keys(item, inner, f"{where}[{index}]")


def known_part(value: Any, annotation: Any) -> Any:
    """The value without what `unknown_keys` names, so that the rest of it can be checked all the same."""
    model = _model_in(annotation)
    if isinstance(value, Mapping):
        if model is not None:
            fields = model.model_fields
            return {key: known_part(item, fields[key].annotation) for key, item in value.items() if key in fields}
        inner = _argument_of(annotation, dict, 1)
        return {key: known_part(item, inner) for key, item in value.items()} if inner else value
    if isinstance(value, list) and (inner := _argument_of(annotation, list, 0)):
        return [known_part(item, inner) for item in value]
    return value


def _unknown_fields(value: Mapping[str, Any], model: type[BaseModel], where: str) -> Iterator[str]:
    for key, item in value.items():
        field = model.model_fields.get(key)
        if field is None:
            near = difflib.get_close_matches(str(key), model.model_fields, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(model.model_fields))}"
            yield f"{join(where, key)}: unknown key{hint}"
        else:
            yield from unknown_keys(item, field.annotation, join(where, key))


def _bundle_problems(config: FleetConfig) -> list[str]:
    """Ray cannot place a draft worker that reserves nothing."""
    return [
        f"paths.{name}: with a draft worker, target and draft must each reserve some num_cpus or num_gpus"
        for name, path in config.paths.items()
        if path.speculative is not None
        and path.speculative.method == "draft_model"
        and not ((path.num_cpus or path.num_gpus) and (path.draft.num_cpus or path.draft.num_gpus))
    ]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model that an annotation such as `Model | dict | None` allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in _parts(annotation) if (model := _model_in(part))), None)


def _argument_of(annotation: Any, container: type, index: int) -> Any:
    """The value type of a dict or the item type of a list within an annotation, None when it says nothing."""
    if get_origin(annotation) is container:
        arguments = get_args(annotation)
        return arguments[index] if len(arguments) > index else None
    return next((found for part in _parts(annotation) if (found := _argument_of(part, container, index))), None)


def _parts(annotation: Any) -> tuple[Any, ...]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return get_args(annotation)[:1]
    return get_args(annotation) if origin in (Union, types.UnionType) else ()


def join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def require_clean(path: Path, problems: list[str]) -> None:
    """Raise one `ConfigError` that names every problem."""
    if problems:
        raise ConfigError(f"{path}: " + "; ".join(problems))
