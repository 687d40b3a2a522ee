"""Finds the files of a target and its proposer, compares them, and refuses a wrong pair before it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.config import HEAD_METHODS, LOOKUP_METHODS, FleetConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer
from replicas.compatibility.drafts import ModelFiles, compare_embedding, compare_models, compare_tokenizers
from replicas.compatibility.findings import Finding, PairReport, refusal
from replicas.compatibility.heads import HeadFiles, HeadUse, compare_head
from replicas.compatibility.layout import Kind, recognise
from replicas.compatibility.stored import limited, read_config, read_head, read_model, read_shapes
from replicas.engine.decoder_config import load_config, shares_embedding
from replicas.model_store import resolve_head, resolve_model

SUPPORTED_SPECULATORS = (None, "eagle3")


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and how tokens are proposed for it."""

    target: ModelConfig
    method: str
    model: str | None = None
    layers: int | None = None
    draft_length: int = 1
    revision: str | None = None
    """Of the proposer's hub id."""
    taps_outputs: bool = False
    """The layer ids of an EAGLE-3 head name the states that leave those layers."""
    context: int | None = None
    """Tokens up to which a sequence is drafted for; None = as far as the proposer's own goes."""


def pair_of(target: ModelConfig, speculative: SpeculativeConfig) -> Pair:
    """The pair that a path's config describes."""
    return Pair(
        target,
        speculative.method,
        speculative.model,
        speculative.layers,
        speculative.draft_length,
        speculative.revision,
        speculative.eagle_aux_layers == "output",
        speculative.max_model_len,
    )


def check_pair(pair: Pair, progress: Callable[[str], None], tokenizer: Tokenizer | None = None) -> PairReport:
    """Compare everything that files can tell. `tokenizer` is the target's where it is loaded already.

    Raises ConfigError where a model cannot be found or read at all.
    """
    findings: Iterator[Finding]
    if pair.method in LOOKUP_METHODS:
        findings = iter([Finding("method", "", pair.method, note="needs no model; it fits every target")])
        return PairReport(pair.target.model, pair.method, None, tuple(findings))
    folder = resolve_model(pair.target, progress)
    if pair.model is None:
        findings = _compare_layers(pair, folder)
    else:
        findings = _compare(pair, folder, proposer_folder(pair, progress), tokenizer)
    proposer = pair.model or f"its first {pair.layers} layers"
    return PairReport(pair.target.model, pair.method, proposer, tuple(findings))


def require_pair(pair: Pair, progress: Callable[[str], None], tokenizer: Tokenizer | None = None) -> None:
    """Raise one ConfigError with every problem where the pair must not serve."""
    report = check_pair(pair, progress, tokenizer)
    if not report.is_ok:
        raise ConfigError(refusal(report))


def require_paths(config: FleetConfig, progress: Callable[[str], None]) -> None:
    """The same for every path of a fleet, naming the path."""
    for name, path in config.paths.items():
        if path.speculative is None:
            continue
        try:
            require_pair(pair_of(config.model, path.speculative), progress)
        except ConfigError as error:
            raise ConfigError(f"path '{name}': {error}") from error


def proposer_folder(pair: Pair, progress: Callable[[str], None]) -> Path:
    """A head as it was published, which need not be in safetensors; everything else as a model. Raises ConfigError."""
    model = str(pair.model)
    if Path(model).expanduser().is_dir() or pair.method in HEAD_METHODS:
        return resolve_head(model, pair.revision, progress)
    return resolve_model(ModelConfig(model=model, revision=pair.revision), progress)


def _compare(pair: Pair, target: Path, proposer: Path, tokenizer: Tokenizer | None) -> Iterator[Finding]:
    shapes = read_shapes(proposer)
    kind = recognise(shapes)
    method = _method(pair, proposer, kind)
    yield method
    if not method.is_ok or kind is None:
        return
    theirs = tokenizer or Tokenizer.load(target)
    if kind is Kind.DRAFT_MODEL:
        yield _architecture(pair, proposer)
        is_borrowing = shares_embedding(proposer)
        own = theirs if is_borrowing else Tokenizer.load(proposer)
        models = (
            ModelFiles(pair.target.model, read_model(target), theirs),
            ModelFiles(str(pair.model), limited(read_model(proposer), pair.context), own),
        )
        yield from compare_models(*models, pair.draft_length, pair.target.max_model_len)
        if is_borrowing:
            yield compare_embedding(*models)
        return
    head = HeadFiles(kind, limited(read_head(proposer), pair.context), shapes)
    yield from compare_head(read_model(target), head, HeadUse(pair.draft_length, pair.taps_outputs))
    if (proposer / "tokenizer.json").is_file():
        yield from compare_tokenizers(pair.target.model, theirs, str(pair.model), Tokenizer.load(proposer))


def _method(pair: Pair, proposer: Path, kind: Kind | None) -> Finding:
    """Is the checkpoint of the kind that the method uses?"""
    speculator = read_config(proposer).get("speculators_model_type")
    shown = kind or "unknown"
    if speculator not in SUPPORTED_SPECULATORS:
        problem, remedy = f"'{speculator}' speculators are not supported", "take an eagle3 one"
    elif kind is None:
        problem, remedy = (
            "its tensors are of no known kind of proposer",
            "take a draft model, an EAGLE or a Medusa head",
        )
    elif kind != pair.method:
        problem, remedy = f"the checkpoint is of the kind '{kind}'", f"set method: {kind}"
    else:
        return Finding("method", pair.method, shown)
    return Finding("method", pair.method, shown, problem=problem, remedy=remedy)


def _compare_layers(pair: Pair, folder: Path) -> Iterator[Finding]:
    """The target's own first layers: the same tokens by construction."""
    layers, all_layers = pair.layers or 0, read_model(folder).num_hidden_layers
    is_possible = 1 <= layers <= all_layers
    yield Finding(
        "layers",
        f"{all_layers}",
        f"first {layers}",
        problem=None if is_possible else f"the target has {all_layers} layers",
        remedy=None if is_possible else f"set layers to 1 to {all_layers - 1}",
        note="as slow as the target itself" if layers == all_layers else None,
    )


def _architecture(pair: Pair, folder: Path) -> Finding:
    kind = str(read_config(folder).get("model_type"))
    try:
        load_config(folder)
    except ConfigError as error:
        return Finding("architecture", "", kind, problem=str(error), remedy="take a draft of a supported kind")
    return Finding("architecture", "", kind)
