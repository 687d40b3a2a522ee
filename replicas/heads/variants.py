"""Does an EAGLE-3 config ask for another network than the paper's? Its tensors need not show it; its flags do."""

from __future__ import annotations

from collections.abc import Mapping

SUPPORTED: Mapping[str, bool | int] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}
"""The values that stand for what `Eagle3Head` computes; an absent or null flag says nothing.

`next_layer_regular` is not among them: it speaks of layers after the first, and heads have one.
"""


def unsupported_flags(config: Mapping[str, object]) -> tuple[str, ...]:
    """`flag: value` wherever, at the config's top or in its `eagle_config`, the value is not the supported one."""
    nested = config.get("eagle_config")
    tables = (config, nested if isinstance(nested, Mapping) else {})
    found = ((flag, table.get(flag)) for flag in SUPPORTED for table in tables)
    return tuple(
        f"{flag}: {str(value).lower()}" for flag, value in found if value is not None and value != SUPPORTED[flag]
    )
