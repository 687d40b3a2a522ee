"""What does a proposer add to the target: weights, cache, and the time of its passes?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from deploy.planning.acceptance import Acceptance, parse_acceptance
from deploy.planning.architecture import Architecture, Extras
from deploy.planning.config_file import find_architecture
from deploy.planning.formats import Formats
from deploy.planning.head_file import cut_head_rows, read_head_file
from deploy.planning.kv_cache import NO_CACHE, KvCache, kv_cache
from deploy.planning.roofline import DRAFT_OVERHEAD_SECONDS, PassCost, attention_flops, model_cost
from deploy.planning.weights import count_parameters, plain_bytes
from fleet.config import HEAD_METHODS
from fleet.errors import ConfigError
from replicas.engine.footprint import Footprint, LinearSize

EAGLE3_DRAFT_VOCABULARY = 32000
EAGLE3_TAPS = 3
GPU_FORMATS = Formats()


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """A proposer as asked for: METHOD[:MODEL or a head's FOLDER][,k=4][,acceptance=0.75][,on=own][,ahead=0.6]."""

    method: str
    model: str | None
    draft_length: int
    acceptance: Acceptance | None
    is_on_own_gpu: bool = False
    hit_rate: float = 0.0
    """Share of rounds whose drafts were made while the target verified."""

    @property
    def label(self) -> str:
        return self.method if self.model is None else f"{self.method}:{self.model.rstrip('/').rsplit('/', 1)[-1]}"


@dataclass(frozen=True, slots=True)
class Proposer:
    """What a proposer costs. Sizes are of the whole proposer, not yet divided over GPUs."""

    spec: ProposerSpec
    parameters: int
    """Those of its files."""
    weight_bytes: float
    """What it holds in memory."""
    cache: KvCache
    cost: PassCost | None
    """Of one pass, None where proposing costs no model pass."""
    is_one_pass: bool
    """One pass drafts all positions (Medusa); otherwise each position takes a pass."""

    def passes(self, length: int) -> int:
        """Passes that draft so many tokens."""
        return min(length, 1) if self.is_one_pass else length


@dataclass(frozen=True, slots=True)
class Host:
    """The target that a proposer stands beside, and how its numbers are kept there."""

    target: Architecture
    split: int
    """GPUs that share the proposer."""
    formats: Formats
    """Of the proposer as of the target."""


def parse_proposer(text: str, *, draft_length: int, acceptance: Acceptance | None) -> ProposerSpec:
    """A `ProposerSpec` with the given defaults. Raises ConfigError that shows how to write it."""
    head, *settings = (part.strip() for part in text.split(","))
    method, _, model = head.partition(":")
    if method not in _BUILDERS:
        raise ConfigError(f"proposer '{text}': method '{method}' is not known; known: {', '.join(_BUILDERS)}")
    if method == "draft_model" and not model:
        raise ConfigError(f"proposer '{text}': needs its model: draft_model:MODEL")
    if model and method not in ("draft_model", *HEAD_METHODS):
        raise ConfigError(f"proposer '{text}': takes no model, write '{method}'")
    spec = ProposerSpec(method, model or None, draft_length, acceptance)
    for setting in settings:
        spec = _with(spec, setting, text)
    return spec


def build_proposer(
    spec: ProposerSpec, target: Architecture, tensor_parallel: int, formats: Formats = GPU_FORMATS
) -> Proposer:
    """The proposer's sizes beside this target. Raises ConfigError where its model is not known."""
    host = Host(target, 1 if spec.is_on_own_gpu else tensor_parallel, formats)
    if spec.model is not None and spec.method in HEAD_METHODS:
        return _stored_head(spec, spec.model, host)
    return _BUILDERS[spec.method](spec, host)


def _with(spec: ProposerSpec, setting: str, text: str) -> ProposerSpec:
    key, _, value = setting.partition("=")
    if key == "k" and value.isdecimal() and 1 <= int(value) <= 32:
        return replace(spec, draft_length=int(value))
    if key == "acceptance":
        return replace(spec, acceptance=parse_acceptance(value))
    if key == "on" and value in ("own", "same"):
        return replace(spec, is_on_own_gpu=value == "own")
    if key == "ahead" and (rate := _fraction(value)) is not None:
        return replace(spec, hit_rate=rate)
    raise ConfigError(
        f"proposer '{text}': '{setting}' is not understood; write k=1..32, acceptance=0.75, on=own|same or ahead=0..1"
    )


def _fraction(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


def _lookup(spec: ProposerSpec, host: Host) -> Proposer:
    """Looks tokens up in the text itself: no weights, no pass."""
    return Proposer(spec, 0, 0.0, NO_CACHE, None, is_one_pass=True)


def _draft_model(spec: ProposerSpec, host: Host) -> Proposer:
    model = find_architecture(str(spec.model))
    cache, rows = host.formats.cache(model, host.split), cut_head_rows(str(spec.model))
    read = model.stored_format if host.formats.on_cpu is None else host.formats.read(model)
    cost = model_cost(model, read, cache, host.split, DRAFT_OVERHEAD_SECONDS)
    if rows is not None:
        spared = (model.vocabulary - rows) * model.hidden
        cost = replace(
            cost,
            fixed_bytes=cost.fixed_bytes - plain_bytes(spared, read) / host.split,
            flops_per_token=cost.flops_per_token - 2.0 * spared / host.split,
        )
    size = host.formats.draft_bytes(model, rows)
    return Proposer(spec, count_parameters(model).total, size, cache, cost, is_one_pass=False)


def _eagle(spec: ProposerSpec, host: Host) -> Proposer:
    """EAGLE-1/2 (arXiv:2401.15077): fc [h, 2h] and one layer of the target's shape; embedding and head are its own."""
    target, layer = host.target, _one_layer(host.target)
    own = _footprint((target.hidden, 2 * target.hidden), *_linears(layer, target.hidden))
    return _head_proposer(spec, layer, own, _with_targets_output(own, host), host)


def _eagle3(spec: ProposerSpec, host: Host) -> Proposer:
    """EAGLE-3 (arXiv:2503.01840): fc [h, 3h], one layer whose attention reads 2h (embedding, hidden), a small head."""
    target, layer = host.target, _one_layer(host.target)
    own = _footprint(
        (target.hidden, EAGLE3_TAPS * target.hidden),
        *_linears(layer, 2 * target.hidden),
        (min(EAGLE3_DRAFT_VOCABULARY, target.vocabulary), target.hidden),
    )
    return _head_proposer(spec, layer, own, own, host)


def _medusa(spec: ProposerSpec, host: Host) -> Proposer:
    """Medusa-1 (arXiv:2401.10774): one head for each drafted position, h² + h·V weights, no cache."""
    hidden = host.target.hidden
    return _one_pass_heads(
        spec, _footprint(*[(hidden, hidden), (host.target.vocabulary, hidden)] * spec.draft_length), host
    )


def _stored_head(spec: ProposerSpec, folder: str, host: Host) -> Proposer:
    """A head in a folder: its own tensors, in the number format of the target, and its own layer's cache.

    An EAGLE-1 head reads the target's output head too, whole or the rows of the tokens that it can draft.
    """
    head = read_head_file(
        spec.method, folder, spec.draft_length, host.target, is_target_narrow=host.formats.is_narrow(host.target)
    )
    if spec.method == "medusa":
        return _one_pass_heads(spec, head.footprint, host)
    config, layer = head.config, _one_layer(host.target)
    heads = config.num_attention_heads or layer.heads
    head_dim = config.head_dim or (config.hidden_size or layer.hidden) // heads
    layer = replace(layer, heads=heads, kv_heads=config.num_key_value_heads or heads, head_dim=head_dim)
    read = replace(head.footprint, numbers=head.footprint.numbers - head.embedding)
    if spec.method == "eagle" and read.copied is None:
        read = _with_targets_output(read, host)
    return _head_proposer(spec, layer, head.footprint, read, host)


def _one_pass_heads(spec: ProposerSpec, own: Footprint, host: Host) -> Proposer:
    """Medusa heads, all of whose weights are read in the one pass."""
    read = host.formats.head_read_bytes(own)
    cost = PassCost(read / host.split, 2.0 * own.parameters / host.split, overhead_seconds=DRAFT_OVERHEAD_SECONDS)
    return Proposer(spec, own.parameters, host.formats.head_bytes(own), NO_CACHE, cost, is_one_pass=True)


def _head_proposer(spec: ProposerSpec, layer: Architecture, own: Footprint, read: Footprint, host: Host) -> Proposer:
    """A one-layer head that holds `own`, and of which a pass reads `read`."""
    cache = kv_cache(layer, host.formats.kv_bytes, host.split)
    cost = PassCost(
        fixed_bytes=host.formats.head_read_bytes(read) / host.split,
        flops_per_token=2.0 * read.all_numbers / host.split,
        cache=cache,
        attention_flops=attention_flops(layer) / host.split,
        overhead_seconds=DRAFT_OVERHEAD_SECONDS,
    )
    return Proposer(spec, own.parameters, host.formats.head_bytes(own), cache, cost, is_one_pass=False)


def _with_targets_output(own: Footprint, host: Host) -> Footprint:
    """What a head reads whose output layer is the target's."""
    output = LinearSize(host.target.vocabulary, host.target.hidden, host.formats.is_narrow(host.target))
    return replace(own, linears=(*own.linears, output))


def _one_layer(target: Architecture) -> Architecture:
    """The Llama layer that published heads have, at the target's sizes. Its attention is grouped even beside MLA."""
    return replace(
        target,
        layers=1,
        windows=(None,),
        extras=Extras(),
        latent=None,
        experts=None,
        head_dim=target.hidden // target.heads if target.latent else target.head_dim,
    )


def _linears(layer: Architecture, attention_input: int) -> list[tuple[int, int]]:
    """Rows and columns of a Llama layer's weights, whose attention may read rows of another width."""
    queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    attention = [(rows, attention_input) for rows in (queries, keys, keys)]
    return [*attention, (layer.hidden, queries), *[(layer.width, layer.hidden)] * 2, (layer.hidden, layer.width)]


def _footprint(*linears: tuple[int, int]) -> Footprint:
    """Of a head as they are usually published, in 16 bits; norms and biases are too few to count."""
    return Footprint(tuple(LinearSize(rows, columns, is_narrow=True) for rows, columns in linears), 0)


_BUILDERS: Mapping[str, Callable[[ProposerSpec, Host], Proposer]] = {
    "draft_model": _draft_model,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "medusa": _medusa,
    "ngram": _lookup,
    "suffix": _lookup,
}
