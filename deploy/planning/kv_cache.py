"""How much cache does a token take, and how much of it is read? Grouped heads, latents, windows, split over GPUs."""

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
    """Tokens that a layer looks back at, None for all, and how many layers do so. It keeps all of them nevertheless."""

    @property
    def bytes_per_token(self) -> float:
        """Of one token in all layers, for as long as its sequence has a place."""
        return self.bytes_per_layer * sum(layers for _, layers in self.windows)

    def read_bytes(self, tokens: int) -> float:
        """What a token of a sequence so long reads."""
        return self.bytes_per_layer * self.seen_tokens(tokens)

    def seen_tokens(self, tokens: int) -> int:
        """Summed over the layers; one with a window reads no more than that."""
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
