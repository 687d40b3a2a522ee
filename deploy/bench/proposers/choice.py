"""Which arms are measured? The usual ones by name, from a folder of trained models, or any settings as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from deploy.bench.proposers.plan import BASELINE, Arm
from fleet.config import HEAD_METHODS, JUDGED_METHODS, LOOKUP_METHODS, DrillConfig, SpeculativeConfig, explain
from fleet.errors import ConfigError

NAMES = ("draft_model", "eagle", "eagle3", "medusa", "ngram", "suffix")
RULES = tuple(f"{method}/rejection" for method in JUDGED_METHODS)
TREES = tuple(f"{method}/tree" for method in HEAD_METHODS)
TREE = (2, 2, 1)
"""Children per level; further levels have one each, down to the longest draft."""
USELESS = "useless"
EVERY = (*NAMES, *RULES, *TREES, USELESS)
USELESS_LAYERS = 2
FOLDERS = {"draft_model": "draft"}
"""Where the folder of a trained proposer is not called like its method."""


def arms_of(
    names: Sequence[str], models: Path, tokens: int, extra: Sequence[str], say: Callable[[str], None]
) -> list[Arm]:
    """The baseline and the named arms; a trained proposer that is not in `models` is left out with a line.

    `NAME@chat` or `NAME@chat+code` is measured on the prompts of these categories only.
    `extra` are NAME=JSON, settings as in a path's `speculative`. Raises ConfigError.
    """
    arms = [Arm(BASELINE)]
    for asked in names:
        name, _, where = asked.partition("@")
        method = name.partition("/")[0]
        folder = models / FOLDERS.get(method, method)
        if method in ("draft_model", *HEAD_METHODS) and not folder.is_dir():
            say(f"{name} is left out: there is no {folder}")
        else:
            arms.append(replace(_usual(name, folder, tokens), categories=tuple(where.split("+")) if where else ()))
    arms += [_from_json(text) for text in extra]
    if len({arm.name for arm in arms}) < len(arms):
        raise ConfigError("two arms have the same name")
    return arms


def _usual(name: str, folder: Path, tokens: int) -> Arm:
    if name == USELESS:
        useless = {"method": "draft_model", "layers": USELESS_LAYERS, "num_speculative_tokens": tokens}
        return Arm(name, _checked(name, useless), DrillConfig(useless_draft=True))
    if name not in EVERY:
        raise ConfigError(f"unknown proposer '{name}'; there are {', '.join(EVERY)}")
    method = name.partition("/")[0]
    keys: dict[str, object] = {"method": method}
    if method not in LOOKUP_METHODS:
        keys |= {"num_speculative_tokens": tokens, "model": str(folder)}
    if name in RULES:
        keys["acceptance"] = "rejection"
    if name in TREES:
        keys["tree"] = (*TREE, *(1,) * tokens)[:tokens]
    if method == "suffix":
        # The same prompts come again under other conditions: their answers must not be known from before.
        keys["suffix_decoding_max_cached_requests"] = 0
    return Arm(name, _checked(name, keys))


def _from_json(text: str) -> Arm:
    name, has_settings, settings = text.partition("=")
    if not name or not has_settings:
        raise ConfigError(
            f'an arm is written NAME=JSON, such as half=\'{{"method": "draft_model", "layers": 15}}\', not \'{text}\''
        )
    try:
        return Arm(name, SpeculativeConfig.model_validate_json(settings))
    except ValidationError as error:
        raise ConfigError(f"arm '{name}': {explain(error)}") from error


def _checked(name: str, keys: Mapping[str, object]) -> SpeculativeConfig:
    try:
        return SpeculativeConfig.model_validate(keys)
    except ValidationError as error:
        raise ConfigError(f"arm '{name}': {explain(error)}") from error
