"""Is a Serve config exactly what its author meant, and do its applications make a fleet?

Ray Serve accepts any key anywhere and falls back to defaults: `max_ongoing_request: 3` deploys with 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from deploy.lint import known_part, unknown_keys
from deploy.manifest import (
    BUILDERS,
    CONTROLLER_APP,
    CONTROLLER_DEPLOYMENT,
    PATH_DEPLOYMENT,
    ROUTER_APP,
    ROUTER_DEPLOYMENT,
    app_of,
)
from deploy.serve_args import ControllerArgs, PathArgs, RouterArgs
from fleet.config import Section, problems_in

_ARGS: Mapping[str, tuple[type[Section], str]] = {
    f"{BUILDERS}:controller": (ControllerArgs, CONTROLLER_DEPLOYMENT),
    f"{BUILDERS}:path": (PathArgs, PATH_DEPLOYMENT),
    f"{BUILDERS}:router": (RouterArgs, ROUTER_DEPLOYMENT),
}


def lint_serve(value: Mapping[str, Any]) -> list[str]:
    """What is wrong with a Serve config for this fleet: unknown keys, bad values, applications that do not fit."""
    problems = list(unknown_keys(value, ServeDeploySchema))
    applications = value.get("applications")
    if not isinstance(applications, list) or not all(isinstance(item, dict) for item in applications):
        return [*problems, "applications: must be a list of mappings"]
    for index, application in enumerate(applications):
        problems += _application_problems(application, f"applications[{index}]")
    try:
        ServeDeploySchema.model_validate(value)
    except ValidationError as error:
        problems += [problem for problem in problems_in(error) if problem not in problems]
    return problems or _assembly_problems(applications)


def _application_problems(application: Mapping[str, Any], where: str) -> list[str]:
    import_path = str(application.get("import_path"))
    if import_path not in _ARGS:
        return [f"{where}.import_path: must be one of {', '.join(sorted(_ARGS))}, got {import_path!r}"]
    model, deployment_name = _ARGS[import_path]
    args = application.get("args", {})
    problems = list(unknown_keys(args, model, f"{where}.args"))
    try:
        model.model_validate(known_part(args, model))
    except ValidationError as error:
        problems += [f"{where}.args.{part}" for part in problems_in(error)]
    deployments = application.get("deployments", [])
    names = [item.get("name") for item in deployments if isinstance(item, Mapping)]
    if names != [deployment_name]:
        problems.append(f"{where}.deployments: must list exactly '{deployment_name}', got {names}")
    elif "max_ongoing_requests" not in deployments[0]:
        problems.append(f"{where}.deployments[0].max_ongoing_requests: missing; Serve's default of 5 starves streams")
    return problems


def _assembly_problems(applications: list[Mapping[str, Any]]) -> list[str]:
    """Applications that are right by themselves but do not make a fleet."""
    by_name = {application["name"]: application for application in applications}
    missing = [f"applications: '{name}' is missing" for name in (CONTROLLER_APP, ROUTER_APP) if name not in by_name]
    if missing:
        return missing
    problems = []
    served = {
        name: PathArgs.model_validate(item["args"]).path
        for name, item in by_name.items()
        if item["import_path"] == f"{BUILDERS}:path"
    }
    problems += [
        f"applications: '{name}' serves path '{path}', so its name must be '{app_of(path)}'"
        for name, path in served.items()
        if name != app_of(path)
    ]
    router = RouterArgs.model_validate(by_name[ROUTER_APP]["args"])
    controller = ControllerArgs.model_validate(by_name[CONTROLLER_APP]["args"])
    for who, paths, stable in (
        (ROUTER_APP, set(router.paths), router.stable),
        (CONTROLLER_APP, set(controller.paths), controller.stable),
    ):
        if paths != set(served.values()):
            problems.append(
                f"{who}.args.paths: {_names(paths)}, but the path applications are {_names(served.values())}"
            )
        if stable not in paths:
            problems.append(f"{who}.args.stable: '{stable}' is not one of {_names(paths)}")
    return problems


def _names(paths: Iterable[str]) -> str:
    return ", ".join(sorted(paths))
