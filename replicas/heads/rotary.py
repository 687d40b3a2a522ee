"""The rotary embedding of a draft layer, from whatever its own config says about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fleet.config import explain
from fleet.errors import ConfigError
from replicas.engine.decoder_config import STABLE_ROPE, Rope

DEFAULT_THETA = 10000.0
"""What a Llama config means that names no theta; never the target's."""


def rope_from(name: str, config: Mapping[str, Any], context: int) -> Rope:
    """Read `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling`.

    Raises ConfigError for a scaling that this project does not know.
    """
    table = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    given = {key: value for key, value in table.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in STABLE_ROPE:
        supported = ", ".join(STABLE_ROPE)
        raise ConfigError(f"{name}: rotary embedding '{kind}' is not supported (supported: {supported})")
    defaults = {
        "rope_theta": config.get("rope_theta") or DEFAULT_THETA,
        "original_max_position_embeddings": context,
    }
    try:
        return Rope.model_validate({**defaults, **given, "rope_type": kind})
    except ValidationError as error:
        raise ConfigError(f"{name}/config.json: rotary embedding: {explain(error)}") from error
