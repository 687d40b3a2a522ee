"""What fits? Memory of one GPU by part, cached tokens and concurrent sequences, with and without a proposer."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.planning.kv_cache import NO_CACHE, KvCache
from deploy.planning.proposers import Proposer
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Deployment:
    """The target on its GPUs, without a proposer. Bytes are of one GPU."""

    memory_bytes: float
    utilisation: float
    """The share of it that may be used."""
    reserve_bytes: float
    """Activations, CUDA graphs and workspace."""
    weight_bytes: float
    cache: KvCache
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One GPU's memory by part, in bytes; what is left is the cache of target and proposer together."""

    usable: float
    weights: float
    reserve: float
    proposer_weights: float
    target_cache: KvCache
    proposer_cache: KvCache
    draft_length: int

    @property
    def cache(self) -> float:
        """Bytes left for the cache; negative where nothing fits."""
        return self.usable - self.weights - self.reserve - self.proposer_weights

    @property
    def tokens(self) -> int:
        """Tokens that can be cached at once."""
        return max(0, int(self.cache / self._token_bytes))

    def sequences(self, context: int) -> int:
        """Sequences of this length that can run at once, each with room for its drafts and the bonus.

        N = ⌊cache / ((S + k + 1)·(kv_target + kv_draft))⌋.
        """
        return max(0, int(self.cache / ((context + self.draft_length + 1) * self._token_bytes)))

    @property
    def _token_bytes(self) -> float:
        return self.target_cache.bytes_per_token + self.proposer_cache.bytes_per_token


def plan_memory(deployment: Deployment, proposer: Proposer | None = None) -> MemoryPlan:
    """The target's GPU with the proposer on it, or without; one on a GPU of its own takes only room for its drafts."""
    is_beside = proposer is not None and not proposer.spec.is_on_own_gpu
    return MemoryPlan(
        usable=deployment.memory_bytes * deployment.utilisation,
        weights=deployment.weight_bytes,
        reserve=deployment.reserve_bytes,
        proposer_weights=proposer.weight_bytes / deployment.tensor_parallel if proposer and is_beside else 0.0,
        target_cache=deployment.cache,
        proposer_cache=proposer.cache if proposer and is_beside else NO_CACHE,
        draft_length=proposer.spec.draft_length if proposer else 0,
    )


def require_room(plan: MemoryPlan, context: int, what: str, *, is_on_cpu: bool = False) -> None:
    """Raise ConfigError, with what would help on such a device, where not even one sequence of this length fits."""
    if plan.sequences(context) > 0:
        return
    gib = 2**30
    parts = f"weights take {plan.weights / gib:.1f}, reserve {plan.reserve / gib:.1f}"
    if plan.proposer_weights:
        parts += f", proposer {plan.proposer_weights / gib:.1f}"
    place, remedy = (
        ("", "give more --memory, or take a shorter --context or a smaller model")
        if is_on_cpu
        else (" per GPU", "raise --tensor-parallel, take a larger GPU or a smaller --dtype")
    )
    raise ConfigError(
        f"{what} does not fit: of {plan.usable / gib:.1f} GiB usable{place}, {parts}, and the rest does not hold one "
        f"sequence of {context} tokens; {remedy}"
    )
