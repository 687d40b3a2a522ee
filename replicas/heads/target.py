"""What a head shares with the target that it drafts for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shared:
    """The target's own ends and sizes."""

    name: str
    """What messages call it."""
    layers: int
    embedding: Tensor
    """[vocab, hidden]."""
    head: Callable[[Tensor], Tensor]
    """Hidden states [n, hidden] after the final norm to float32 logits [n, vocab]."""
    cut_head: Callable[[Tensor], Callable[[Tensor], Tensor]]
    """Token ids int64 [size] to the head for these alone, whose logits are [n, size]."""

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.embedding.shape[1]

    def require(self, name: str, *, hidden_size: int | None = None, vocab_size: int | None = None) -> None:
        """ConfigError that names both sides where a head was made for a target of other sizes."""
        for what, heads, own in (
            ("hidden size", hidden_size, self.hidden_size),
            ("vocabulary", vocab_size, self.vocab_size),
        ):
            if heads is not None and heads != own:
                raise ConfigError(
                    f"{name} was made for another target: its {what} is {heads}, that of {self.name} is {own}"
                )
