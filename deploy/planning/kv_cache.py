"""How much cache does a token take, and a sequence? Grouped heads, latents, sliding windows, split over GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from deploy.planning.architecture import Architecture


@dataclass(frozen=True, slots=True)
class KvCache:
    """One model's cache on each of `tensor_parallel` GPUs."""

    bytes_per_layer: float
    """Of one token, on one GPU."""
    windows: tuple[tuple[int | None, int], ...]
    """Tokens that a layer keeps, None for all, and how many layers do so."""

    @property
    def bytes_per_token(self) -> float:
        """Of one token in all layers, while no window is full."""
        return self.bytes_per_layer * sum(layers for _, layers in self.windows)

    def sequence_bytes(self, tokens: int) -> float:
        """Of one sequence so long."""
        return self.bytes_per_layer * self.kept_tokens(tokens)

    def kept_tokens(self, tokens: int) -> int:
        """Summed over the layers; a layer with a window keeps no more than that."""
        return sum(layers * min(tokens, window or tokens) for window, layers in self.windows)


NO_CACHE = KvCache(0.0, ())


def kv_cache(model: Architecture, element_bytes: float, tensor_parallel: int = 1) -> KvCache:
    """The cache of a model. Keys and values for each KV head: 2 · heads · head size (GQA, arXiv:2305.13245).

    Heads are divided over the GPUs, a GPU without one of its own keeps a copy. A latent (arXiv:2405.04434 §2.1.2:
    kv_rank + rope_dim numbers) serves all heads and is copied to every GPU.
    """
    if model.latent is not None:
        elements = float(model.latent.kv_rank + model.latent.rope_dim)
    else:
        elements = 2.0 * max(1.0, model.kv_heads / tensor_parallel) * model.head_dim
    return KvCache(elements * element_bytes, tuple(Counter(model.windows).items()))
