"""May this draft work for this target? Compared by content, so that equal sizes do not hide different tokens."""

from __future__ import annotations

from dataclasses import dataclass

from replicas.speculation.messages import PROTOCOL_VERSION, Hello


@dataclass(frozen=True, slots=True)
class Identity:
    """What the target is and what it expects of a draft."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Tokens of the tokenizer; a model's padding beyond it does not count."""
    max_model_len: int
    wants_distributions: bool = False
    """Acceptance by rejection: a draft must name what it drew from."""


def find_mismatch(target: Identity, hello: Hello) -> str | None:
    """The reason to refuse a draft, or None where the two fit."""
    if hello.protocol_version != PROTOCOL_VERSION:
        return f"the draft speaks protocol {hello.protocol_version}, the target {PROTOCOL_VERSION}"
    if hello.vocab_size != target.vocab_size:
        return (
            f"the vocabularies differ: {hello.model} has {hello.vocab_size} tokens, "
            f"{target.model} has {target.vocab_size}"
        )
    if hello.tokenizer_hash != target.tokenizer_hash:
        return f"the tokenizers of {hello.model} and {target.model} have the same size but different tokens"
    if target.wants_distributions and not hello.names_distributions:
        return f"{hello.model} cannot name what it draws from, as acceptance 'rejection' needs: update the draft worker"
    if hello.max_model_len < 1 or hello.max_draft_tokens < 1:
        return f"{hello.model} cannot draft: context {hello.max_model_len}, draft tokens {hello.max_draft_tokens}"
    return None
