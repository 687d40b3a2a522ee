"""One choice in the engine: its tokens, its place in the KV arena and what is known about its progress."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fleet.generation import GenerationRequest, TokenLogprob
from replicas.engine.kv_extents import Extent
from replicas.engine.text import OutputText


@dataclass(slots=True, eq=False)
class Sequence:
    """Invariant: 0 ≤ cached < len(token_ids), and cached ≤ extent.length while it has an extent.

    The last committed token is never cached: it is the first input of the next step.
    """

    id: int
    request: GenerationRequest
    owner: Hashable
    """Who gets its chunks."""
    text: OutputText
    arrived_at: float
    token_limit: int
    """Prompt and output can never be longer than this."""
    token_ids: list[int] = field(default_factory=list)
    """Prompt, then committed output."""
    cached: int = 0
    """Leading tokens whose keys and values are in the extent."""
    extent: Extent | None = None
    queue_seconds: float | None = None
    """Wait until first scheduled; None until then."""
    has_emitted: bool = False
    owed_text: str = ""
    """Text of resumed output that the client has not got yet."""
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    epoch: int = 0
    is_open: bool = False
    """Whether the proposer drafts for it."""
    draft_length: int = 0
    """Tokens the proposer was told to draft for the next step."""
    settled_length: int = 0
    """Committed tokens that the proposer was told of, while it is open."""
    is_probe: bool = False
    """Asked by the worker itself to see that it is alive; goes first and counts nowhere."""

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def pending(self) -> int:
        """Tokens that must run before the next one can be sampled; 1 while decoding."""
        return len(self.token_ids) - self.cached

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are still to be computed."""
        return self.request.sampling.prompt_logprobs and len(self.token_ids) == self.prompt_length

    @property
    def remaining(self) -> int:
        """Output tokens it may still get."""
        return self.token_limit - len(self.token_ids)
