"""Which keys of vLLM's --speculative-config are not taken here, and what serves instead?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key of vLLM's that has no meaning of its own here."""

    instead: str
    """What to do, for whoever set it."""
    harmless: tuple[object, ...] = (None,)
    """Values that ask for what is done anyway."""


_ONE_DEVICE = "a draft runs on one device; leave it out"
_MADE_UP = "acceptance is never made up; the path's 'drill' shows what a useless draft costs"
_OFF = (None, False)

FOREIGN_KEYS: Mapping[str, ForeignKey] = {
    "attention_backend": ForeignKey("attention is the engine's own, for target and draft alike; leave it out"),
    "code_revision": ForeignKey("no code is run from a hub; 'revision' pins the weights"),
    "disable_by_batch_size": ForeignKey("'adaptive: true' stops drafting at every load where it does not pay"),
    "disable_eagle_block_drop": ForeignKey("there is no prefix cache to drop a block of; leave it out", _OFF),
    "disable_padded_drafter_batch": ForeignKey("drafts are never padded; leave it out", (None, True)),
    "draft_load_config": ForeignKey("files are read by what they are; leave it out"),
    "draft_sample_method": ForeignKey("drafts are drawn as the request samples; 'acceptance' says how they are judged"),
    "draft_tensor_parallel_size": ForeignKey(_ONE_DEVICE, (None, 1)),
    "dspark_draft_topk": ForeignKey("the method dspark is not offered"),
    "enable_adaptive_verification": ForeignKey("'adaptive: true' chooses how much is drafted and verified", _OFF),
    "enforce_eager": ForeignKey("set it in the 'engine' section, for target and draft alike", (None, False)),
    "index_share_for_mtp_iteration": ForeignKey("the method mtp is not offered"),
    "kv_cache_dtype": ForeignKey("caches have the dtype of the 'model' section", (None, "auto")),
    "moe_backend": ForeignKey("models with experts are not offered"),
    "num_speculative_tokens_per_batch_size": ForeignKey(
        "'adaptive: true' chooses the length by load, up to num_speculative_tokens"
    ),
    "parallel_drafting": ForeignKey("only medusa drafts all its tokens in one pass", _OFF),
    "quantization": ForeignKey("drafts are served in the dtype of the 'model' section; leave it out"),
    "rejection_sample_method": ForeignKey("set 'acceptance'; 'rejection' is vLLM's 'standard' with drawn drafts"),
    "speculative_token_tree": ForeignKey("set 'tree', such as [[0], [1], [0, 0]]"),
    "synthetic_acceptance_length": ForeignKey(_MADE_UP),
    "synthetic_acceptance_rates": ForeignKey(_MADE_UP),
    "tensor_parallel_size": ForeignKey(_ONE_DEVICE, (None, 1)),
    "use_heterogeneous_vocab": ForeignKey(
        "a draft must have the target's tokenizer; `fleet check` compares them", _OFF
    ),
    "use_local_argmax_reduction": ForeignKey(_ONE_DEVICE, _OFF),
}


def without_foreign(settings: Mapping[str, object]) -> dict[str, object]:
    """Speculative settings without vLLM's harmless keys; ValueError that says what to do about each of the others."""
    found = {key: FOREIGN_KEYS[key] for key in settings if key in FOREIGN_KEYS}
    refused = [f"{key}: {foreign.instead}" for key, foreign in found.items() if settings[key] not in foreign.harmless]
    if refused:
        raise ValueError("; ".join(refused))
    return {key: value for key, value in settings.items() if key not in found}
