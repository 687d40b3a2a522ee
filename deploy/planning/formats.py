"""How many bytes do weights take? By their number format on a GPU, and on a CPU as the engine keeps them there."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.planning.architecture import Architecture
from deploy.planning.kv_cache import KvCache, kv_cache
from deploy.planning.weights import LINEAR_BYTES, count_parameters, plain_bytes, weight_bytes
from fleet.errors import ConfigError
from replicas.engine.decoder_config import parse_config
from replicas.engine.footprint import NARROW, Footprint, Keeping, model_footprint

HEAD_BYTES = 2.0
"""Heads stay in 16 bits beside a quantised target; beside one in float32 they are that."""
CPU_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Formats:
    """How the serving device keeps weights and cache."""

    weights: str = "bfloat16"
    """The target's, one of `LINEAR_BYTES`."""
    kv_bytes: float = 2.0
    """Of one cached number."""
    on_cpu: Keeping | None = None
    """What this project's engine does there; None on a GPU."""

    def read(self, model: Architecture) -> str:
        """The format in which a pass reads the weights of a model that is kept in the target's dtype."""
        if self.on_cpu is None:
            return self.weights
        return "bfloat16" if self.on_cpu.weight_bytes(is_narrow=self.is_narrow(model)) == 2 else "float32"

    def cache(self, model: Architecture, split: int = 1) -> KvCache:
        """Of a model over so many GPUs."""
        return kv_cache(model, self.kv_bytes, split)

    def target_bytes(self, target: Architecture) -> float:
        """All weights of the target. Raises ConfigError where the engine has no CPU path for it."""
        return self._on_cpu(target, None) if self.on_cpu else weight_bytes(target, self.weights)

    def draft_bytes(self, draft: Architecture, head_rows: int | None = None) -> float:
        """All weights of a draft model, as it is stored or, on a CPU, in the target's dtype.

        `head_rows`: its output layer is a copy of so many rows of the whole one, which is not kept but as embedding.
        """
        if self.on_cpu is not None:
            return self._on_cpu(draft, head_rows)
        whole = weight_bytes(draft, draft.stored_format)
        if head_rows is None:
            return whole
        return whole + plain_bytes(head_rows * draft.hidden - count_parameters(draft).head, draft.stored_format)

    def head_bytes(self, head: Footprint) -> float:
        """All weights of a head."""
        return self._head_on_gpu(head) if self.on_cpu is None else head.bytes_in(self.on_cpu)

    def head_read_bytes(self, read: Footprint) -> float:
        """What a pass reads of a head: `read` has the target's layers that it uses, and not what it looks up."""
        return self._head_on_gpu(read) if self.on_cpu is None else read.read_bytes(self.on_cpu)

    def is_narrow(self, model: Architecture) -> bool:
        """Whether the values of a model that is kept in the target's dtype are of a `NARROW` format."""
        return self.weights in NARROW or model.stored_format in NARROW

    def _head_on_gpu(self, head: Footprint) -> float:
        return max(HEAD_BYTES, LINEAR_BYTES[self.weights]) * head.all_numbers

    def _on_cpu(self, model: Architecture, head_rows: int | None) -> float:
        assert self.on_cpu is not None
        config = parse_config(dict(model.values), model.name)
        return model_footprint(config, is_narrow=self.is_narrow(model), head_rows=head_rows).bytes_in(self.on_cpu)


def formats_here(weights: str) -> Formats:
    """How the engine keeps a model of this dtype on this machine's CPU. Raises ConfigError for any that it has not."""
    if weights not in CPU_DTYPES:
        raise ConfigError(f"--dtype {weights}: on a CPU the engine computes in {' or '.join(CPU_DTYPES)}")
    # Here, because torch takes seconds to import, and plans for GPUs need none of it.
    import torch

    from replicas.engine.linear import keeping_on

    keeping = keeping_on(torch.device("cpu"), weights)
    return Formats(weights, float(keeping.number_bytes), keeping)
