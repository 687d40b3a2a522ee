"""Does a draft model fit its target? Tokenizers by content, special tokens, chat template, vocabulary and context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.errors import BadRequest
from fleet.tokenizer import Tokenizer
from replicas.compatibility.findings import Finding
from replicas.compatibility.stored import StoredModel
from replicas.speculation.messages import PROTOCOL_VERSION, Hello
from replicas.speculation.pairing import Identity, find_mismatch

SAME_FAMILY = "take a draft of the target's own family"
SAME_FORMAT = "take a draft tuned on the target's chat format"
FIRST_WORDS = "Fleet probe one"
PROBE = (
    {"role": "user", "content": FIRST_WORDS},
    {"role": "assistant", "content": "Fleet probe two"},
    {"role": "user", "content": "Fleet probe three"},
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's folder: its config and tokenizer."""

    name: str
    config: StoredModel
    tokenizer: Tokenizer


def compare_models(
    target: ModelFiles, draft: ModelFiles, draft_length: int, max_model_len: int | None
) -> Iterator[Finding]:
    """Every comparison between two whole models; `max_model_len` is the target's limit where one is set."""
    yield from compare_tokenizers(target.name, target.tokenizer, draft.name, draft.tokenizer)
    yield _vocabulary(target, draft)
    yield _context(target, draft, draft_length, max_model_len)


def compare_tokenizers(target: str, theirs: Tokenizer, draft: str, own: Tokenizer) -> Iterator[Finding]:
    """Content, special tokens and chat template, as for a head that brings a tokenizer along."""
    yield _content(target, theirs, draft, own)
    yield _special(theirs, own)
    yield _template(theirs, own)


def compare_embedding(target: ModelFiles, draft: ModelFiles) -> Finding:
    """Does the target's embedding fit a draft that stores none?"""
    theirs, own = ((model.config.vocab_size, model.config.hidden_size) for model in (target, draft))
    shown = ("embedding", "{} × {}".format(*theirs), "{} × {}".format(*own))
    if theirs == own:
        return Finding(*shown, note="the draft uses the target's; files cannot prove that it was trained on it")
    return Finding(*shown, problem="it was trained to use another embedding", remedy="train a draft for this target")


def _content(target: str, theirs: Tokenizer, draft: str, own: Tokenizer) -> Finding:
    """By the very rule of the verify protocol's Hello, with the first token that differs."""
    hello = Hello(PROTOCOL_VERSION, own.content_hash, own.vocab_size, draft, "", 1, 1)
    problem = find_mismatch(Identity(target, theirs.content_hash, theirs.vocab_size, 1), hello)
    if problem is not None and (difference := _first_difference(theirs, own)) is not None:
        problem = f"{problem}, first {difference}"
    return Finding(
        "tokenizer",
        f"{theirs.vocab_size} tokens, {theirs.content_hash[:8]}",
        f"{own.vocab_size} tokens, {own.content_hash[:8]}",
        problem=problem,
        remedy=None if problem is None else f"{SAME_FAMILY}: with other tokens every draft would be wrong",
    )


def _first_difference(theirs: Tokenizer, own: Tokenizer) -> str | None:
    """The lowest id that means different text; None where only merges or special flags differ."""
    for token_id in range(max(theirs.vocab_size, own.vocab_size)):
        if theirs.token_bytes(token_id) != own.token_bytes(token_id):
            return f"{token_id}: {theirs.token_text(token_id)!r} and {own.token_text(token_id)!r}"
    return None


def _special(theirs: Tokenizer, own: Tokenizer) -> Finding:
    """Where a text begins and ends. A draft may know fewer ends; with no common one it never proposes to stop."""
    problem, remedy, note = None, None, None
    if None not in (theirs.bos_token_id, own.bos_token_id) and theirs.bos_token_id != own.bos_token_id:
        problem = f"texts begin with token {theirs.bos_token_id} for the target and {own.bos_token_id} for the draft"
    elif theirs.eos_token_ids and own.eos_token_ids and not theirs.eos_token_ids & own.eos_token_ids:
        problem = f"no end-of-text token in common: {_ids(theirs.eos_token_ids)} and {_ids(own.eos_token_ids)}"
    elif theirs.eos_token_ids != own.eos_token_ids:
        note = "they end on different tokens in part; only drafts of the end suffer"
    if problem is not None:
        remedy = "take the draft tuned like the target (both base or both chat), or correct its generation_config.json"
    return Finding("special tokens", _specials(theirs), _specials(own), problem=problem, remedy=remedy, note=note)


def _template(theirs: Tokenizer, own: Tokenizer) -> Finding:
    """How turns are written, by what both templates make of the same conversation, from its first words on.

    What a template puts before them, such as a date or a default system prompt, may differ.
    """
    target, draft = _conversation(theirs), _conversation(own)
    shown = ("chat template", _length(target), _length(draft))
    if target is None or draft is None:
        return Finding(*shown, None, None, "the router writes prompts with the target's alone")
    if _turns(target) != _turns(draft):
        return Finding(*shown, "they write the turns of a conversation differently", SAME_FORMAT)
    return Finding(*shown, None, None, None if target == draft else "equal turns, different words before the first")


def _length(conversation: str | None) -> str:
    return "none" if conversation is None else f"{len(conversation)} characters"


def _conversation(tokenizer: Tokenizer) -> str | None:
    """The probe as the template writes it, None without a template or where it refuses plain turns."""
    try:
        return tokenizer.decode(tokenizer.render_chat(PROBE), skip_special_tokens=False)
    except BadRequest:
        return None


def _turns(conversation: str) -> str:
    return conversation[max(0, conversation.find(FIRST_WORDS)) :]


def _vocabulary(target: ModelFiles, draft: ModelFiles) -> Finding:
    """The draft needs a row for every token that the target can commit; rows beyond the tokenizer's are padding."""
    rows, own = target.config.vocab_size, draft.config.vocab_size
    needed = min(rows, target.tokenizer.vocab_size)
    if own >= needed:
        note = None if rows == own else f"rows beyond {needed} are padding"
        return Finding("vocabulary", f"{rows} rows", f"{own} rows", note=note)
    problem = f"{draft.name} has {own} rows for {needed} tokens"
    remedy = "take another draft: its config.json and tokenizer.json do not belong together"
    return Finding("vocabulary", f"{rows} rows", f"{own} rows", problem=problem, remedy=remedy)


def _context(target: ModelFiles, draft: ModelFiles, draft_length: int, max_model_len: int | None) -> Finding:
    context = target.config.max_position_embeddings
    limit, own = max_model_len or context, draft.config.max_position_embeddings
    problem, remedy, note = None, None, None
    if limit > context:
        problem, remedy = f"max_model_len {limit} exceeds the target's context of {context}", "lower max_model_len"
    elif own <= draft_length + 1:
        problem, remedy = f"{own} tokens leave no room for {draft_length} drafts", "take a draft with a longer context"
    elif own < limit:
        note = f"beyond {own} tokens the target decodes alone"
    return Finding("context", f"{limit}", f"{own}", problem=problem, remedy=remedy, note=note)


def _specials(tokenizer: Tokenizer) -> str:
    bos = "none" if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return f"bos {bos}, eos {_ids(tokenizer.eos_token_ids)}"


def _ids(token_ids: frozenset[int]) -> str:
    return "/".join(map(str, sorted(token_ids))) or "none"
