"""From a path's config to a head that drafts: which checkpoint, which of the target's states, which tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet.clock import Clock
from fleet.config import SpeculativeConfig
from fleet.errors import ConfigError, OutOfMemory
from replicas.engine.footprint import NARROW, Keeping, Needed
from replicas.engine.model import DecoderModel, allocation_failures
from replicas.engine.sampling import Sampler
from replicas.heads.cache import CacheShape, HeadCache
from replicas.heads.candidates import CoupledPicker, IndependentPicker
from replicas.heads.checkpoint import Checkpoint, read_checkpoint
from replicas.heads.eagle import EagleHead
from replicas.heads.eagle3 import Eagle3Head, eagle3_taps
from replicas.heads.eagle_proposer import DraftShape, EagleProposer
from replicas.heads.footprint import head_footprint
from replicas.heads.layer import layer_config
from replicas.heads.medusa import MedusaHeads
from replicas.heads.medusa_proposer import MedusaProposer
from replicas.heads.target import Shared
from replicas.heads.warming import ReadingProposer
from replicas.model_store import resolve_head
from replicas.speculation.tree import Tree


@dataclass(frozen=True, slots=True)
class PublishedHead:
    """A head that was read from its folder, before there is a target to put it on."""

    config: SpeculativeConfig
    checkpoint: Checkpoint

    def taps(self, layers: int) -> tuple[int, ...]:
        """The states of a target of so many layers that the head reads; ConfigError where it has not got them."""
        if self.config.method == "eagle3":
            return eagle3_taps(self.checkpoint, layers, are_outputs=self.config.eagle_aux_layers == "output")
        return (layers,)

    def needed(self, kv_tokens: int, keeping: Keeping, *, is_target_narrow: bool) -> Needed:
        """Weights as they are kept, and an EAGLE layer's keys and values; ConfigError for a wrong config.

        `is_target_narrow` as for `head_footprint`.
        """
        formats = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self.checkpoint.tensors.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in self.checkpoint.tensors.items()}
        narrow = {name for name, number_format in formats.items() if number_format in NARROW}
        footprint = head_footprint(shapes, narrow, is_target_narrow=is_target_narrow)
        weights, loading = footprint.bytes_in(keeping), footprint.loading_bytes(keeping)
        if self.config.method == "medusa":
            return Needed(weights, loading)
        own = self.checkpoint.config.get("transformer_layer_config") or self.checkpoint.config
        layer = layer_config(self.checkpoint.name, own)
        cache = 2 * kv_tokens * layer.kv_heads * layer.head_width * keeping.number_bytes
        return Needed(weights + cache, loading)

    def on(self, model: DecoderModel, name: str, sampler: Sampler, clock: Clock) -> tuple[ReadingProposer, Tree]:
        """The head on a loaded target, with the tree it drafts; ConfigError where the two do not fit."""
        target = Shared(name, model.config.num_hidden_layers, model.embedding, model.head, model.cut_head)
        try:
            with allocation_failures():
                return self._on(model, target, sampler, clock)
        except OutOfMemory as error:
            raise ConfigError(f"{self.checkpoint.name} does not fit into memory: {error}") from error

    def _on(self, model: DecoderModel, target: Shared, sampler: Sampler, clock: Clock) -> tuple[ReadingProposer, Tree]:
        tree = wanted_tree(self.config)
        picker = CoupledPicker(sampler) if self.config.acceptance == "coupled" else IndependentPicker(sampler)
        device, dtype = target.embedding.device, target.embedding.dtype
        checkpoint = self.checkpoint.placed(device, dtype)
        if self.config.method == "medusa":
            heads = MedusaHeads(checkpoint, target)
            if tree.depth > heads.count:
                raise ConfigError(f"{checkpoint.name} has {heads.count} heads and cannot draft {tree.depth} tokens")
            return MedusaProposer(heads, picker, tree, clock), tree
        network: EagleHead | Eagle3Head
        if self.config.method == "eagle3":
            network = Eagle3Head(checkpoint, target, taps=self.taps(target.layers))
        else:
            network = EagleHead(checkpoint, target)
        layer = network.config
        shape = CacheShape(layer.kv_heads, model.kv_tokens, layer.head_width, layer.window)
        context = min(layer.max_position_embeddings, model.max_model_len)
        drafting = DraftShape(tree, min(context, self.config.max_model_len or context))
        cache = HeadCache(shape, dtype=dtype, device=device)
        return EagleProposer(network, cache, picker, drafting, clock), tree


def read_head(config: SpeculativeConfig, progress: Callable[[str], None]) -> PublishedHead:
    """Find and read the checkpoint that a config names; ConfigError in one line where that is impossible."""
    assert config.model is not None, "the config's validation asks for it"
    return PublishedHead(config, read_checkpoint(resolve_head(config.model, config.revision, progress)))


def wanted_tree(config: SpeculativeConfig) -> Tree:
    """The configured tree, or a chain of `num_speculative_tokens`."""
    if config.tree is None:
        return Tree.chain(config.num_speculative_tokens)
    counts = [item for item in config.tree if isinstance(item, int)]
    return (
        Tree.of_counts(counts) if counts else Tree.of_paths(item for item in config.tree if not isinstance(item, int))
    )
