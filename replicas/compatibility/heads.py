"""Does a head fit its target? Sizes, tensors, taps and context, compared before any of it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from replicas.compatibility.findings import Finding
from replicas.compatibility.layout import (
    Kind,
    drafted_tokens,
    expected_eagle,
    expected_eagle3,
    expected_medusa,
    medusa_shape,
    misfits,
)
from replicas.compatibility.stored import Shape, StoredHead, StoredModel

MEDUSA2_PREFIX = "medusa_head."
OTHER_TARGET = "take the head that was made for this target"
BROKEN_FILE = "download the head again, or report it to whoever published it"
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """What a head's folder says."""

    kind: Kind
    config: StoredHead
    shapes: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class HeadUse:
    """How a path means to use a head."""

    draft_length: int
    """Tokens of the longest branch."""
    taps_outputs: bool = False
    """The layer ids of an EAGLE-3 head name the states that leave those layers."""


def compare_head(target: StoredModel, head: HeadFiles, use: HeadUse) -> Iterator[Finding]:
    """Every comparison that the kind of head calls for. Raises ConfigError where its config lacks a size."""
    if head.kind is Kind.MEDUSA:
        yield from _compare_medusa(target, head, use.draft_length)
    else:
        yield from _compare_eagle(target, head, use)
    if head.config.made_for:
        yield Finding("made for", "", head.config.made_for, note="as its config says; files cannot prove it")


def _compare_medusa(target: StoredModel, head: HeadFiles, draft_length: int) -> Iterator[Finding]:
    sizes = medusa_shape(head.shapes)
    if any(name.startswith(MEDUSA2_PREFIX) for name in head.shapes):
        yield Finding(
            "layout",
            "",
            "Medusa-2",
            problem="its heads lie inside the whole model that was trained with them",
            remedy=f"save its '{MEDUSA2_PREFIX}' tensors alone, without that prefix, and serve its model as the target",
        )
    yield _sizes("hidden size", target.hidden_size, sizes.hidden)
    yield _tensors(head, expected_medusa(head.shapes))
    if sizes.vocabulary is None:
        problem = "its heads have no output layer"
        yield Finding("vocabulary", f"{target.vocab_size}", "none", problem=problem, remedy=BROKEN_FILE)
    elif sizes.is_truncated:
        yield Finding("vocabulary", f"{target.vocab_size}", f"{sizes.vocabulary} rows", note="cut to its token_map")
    else:
        yield _sizes("vocabulary", target.vocab_size, sizes.vocabulary)
    is_enough = draft_length <= sizes.heads
    yield Finding(
        "heads",
        f"{draft_length} drafts asked for",
        f"{sizes.heads} in the file",
        problem=None if is_enough else f"{sizes.heads} heads cannot draft {draft_length} tokens",
        remedy=None if is_enough else f"set num_speculative_tokens to {sizes.heads} or less",
    )


def _compare_eagle(target: StoredModel, head: HeadFiles, use: HeadUse) -> Iterator[Finding]:
    config = head.config
    width = config.target_hidden_size or config.hidden_size or 0
    has_own_embedding = "embed_tokens.weight" in head.shapes
    yield _sizes("hidden size", target.hidden_size, width if has_own_embedding else config.hidden_size or 0)
    yield _sizes("vocabulary", target.vocab_size, config.vocab_size or 0)
    if head.kind is Kind.EAGLE3 or "d2t" in head.shapes:
        yield _draft_vocabulary(target, head)
    if head.kind is Kind.EAGLE3:
        yield _taps(target, config, use)
        yield from _variant(config)
    yield _tensors(head, _expected(target, head))
    yield _layers(config)
    yield _context(target, config)


def _sizes(what: str, target: int, head: int) -> Finding:
    is_equal = target == head
    return Finding(
        what,
        str(target),
        str(head),
        problem=None if is_equal else f"the target's is {target}, the head was made for {head}",
        remedy=None if is_equal else OTHER_TARGET,
    )


def _draft_vocabulary(target: StoredModel, head: HeadFiles) -> Finding:
    """The tokens that the head drafts, and the tables that lead from them to the target's."""
    rows = drafted_tokens(head.config, head.shapes)
    marks = head.shapes.get("t2d")
    if rows > target.vocab_size:
        problem = f"it drafts {rows} tokens, more than the target's {target.vocab_size}"
    elif marks is not None and marks != (target.vocab_size,):
        problem = f"its t2d marks {marks[0]} tokens, the target has {target.vocab_size}"
    else:
        note = "all tokens" if rows == target.vocab_size else "a part of them, mapped by d2t"
        return Finding("draft vocabulary", f"{target.vocab_size}", f"{rows}", note=note)
    return Finding("draft vocabulary", f"{target.vocab_size}", f"{rows}", problem=problem, remedy=OTHER_TARGET)


def _taps(target: StoredModel, config: StoredHead, use: HeadUse) -> Finding:
    """The target's states that the head reads: entering layers 2, n/2 and n−3 unless its config names others.

    Those are taken as the states that enter these layers, or that leave them, as `heads.eagle3.eagle3_taps` does.
    """
    layers = target.num_hidden_layers
    taps: tuple[int, ...] = (2, layers // 2, layers - 3)
    if config.tap_ids is not None:
        taps = tuple(number + use.taps_outputs for number in config.tap_ids)
    shown = ", ".join(map(str, taps))
    if taps and len(set(taps)) == len(taps) and all(0 <= tap <= layers for tap in taps):
        return Finding("tapped layers", f"{layers} layers", shown)
    problem = f"a target of {layers} layers does not have the states entering layers {shown}"
    remedy = f"set eagle_aux_layers: entering, or {OTHER_TARGET}" if use.taps_outputs else OTHER_TARGET
    return Finding("tapped layers", f"{layers} layers", shown, problem=problem, remedy=remedy)


def _variant(config: StoredHead) -> Iterator[Finding]:
    """Only where it is another network than the one that is supported."""
    if config.unsupported_flags:
        asked = ", ".join(config.unsupported_flags)
        problem = f"its config asks for {asked}, which is not supported"
        yield Finding("network", "", asked, problem=problem, remedy="take a head that was trained without")


def _expected(target: StoredModel, head: HeadFiles) -> dict[str, Shape]:
    if head.kind is Kind.EAGLE3:
        return expected_eagle3(head.config, head.shapes, target.hidden_size)
    expected = expected_eagle(head.config, head.shapes)
    if head.config.bias:
        expected["fc.bias"] = (head.config.hidden_size or 0,)
    return expected


def _tensors(head: HeadFiles, expected: Mapping[str, Shape]) -> Finding:
    wrong = misfits(expected, head.shapes)
    if not wrong:
        note = "fc has a bias" if "fc.bias" in head.shapes else None
        return Finding("tensors", "", f"{len(head.shapes)}, all that it needs", note=note)
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    problem = ", ".join(wrong[:MOST_NAMED]) + more
    return Finding("tensors", "", f"{len(head.shapes)}", problem=problem, remedy=BROKEN_FILE)


def _layers(config: StoredHead) -> Finding:
    if config.num_hidden_layers == 1:
        return Finding("layers of the head", "", "1")
    problem = f"it has {config.num_hidden_layers} layers, and heads of one layer are supported"
    return Finding("layers of the head", "", f"{config.num_hidden_layers}", problem=problem, remedy="take another head")


def _context(target: StoredModel, config: StoredHead) -> Finding:
    context, own = target.max_position_embeddings, config.max_position_embeddings
    if own is None:
        return Finding("context", f"{context}", "not said", note="2048 is assumed; beyond it the target decodes alone")
    note = f"beyond {own} tokens the target decodes alone" if own < context else None
    return Finding("context", f"{context}", f"{own}", note=note)
