"""What is asked of a model and what comes back: the words shared by router and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class FailureKind(StrEnum):
    """Why a replica gave up a stream. The router decides whether it continues elsewhere."""

    BAD_REQUEST = "bad_request"
    OUT_OF_MEMORY = "out_of_memory"
    OVERLOADED = "overloaded"
    """The engine's queue is full."""
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one choice is sampled. The router fills every field, the seed included."""

    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias) pairs."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_in_output: bool = False
    logprobs: int | None = None
    """Number of most likely alternatives reported per token; 0 reports the sampled token only."""
    prompt_logprobs: bool = False
    """Report log-probabilities of the prompt tokens too (`echo` with `logprobs`)."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream that lost its replica continues: what the client already has."""

    token_ids: tuple[int, ...]
    """Output tokens committed so far, in order."""
    text_length: int
    """Characters of output text already delivered; the rest of the text of `token_ids` is still owed."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice of one request, on one replica."""

    request_id: str
    """Unique per choice and attempt."""
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    choice_index: int = 0
    num_speculative_tokens: int | None = None
    """Upper bound on drafted tokens per round; 0 switches speculation off; None leaves it to the path."""
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token and of its most likely alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One verified round of speculation for one sequence: 0 ≤ accepted ≤ drafted.

    `drafted` counts tokens really verified; `late` marks a round whose proposal missed its deadline
    or was refused, which then ran with drafted = 0.
    """

    drafted: int
    accepted: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """What one engine step committed for one choice."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    """New output text, complete characters only; may be empty while a stop string or a character is held back."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token id when the request asked for log-probabilities, else empty."""
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the generation; None for end of sequence and length."""
    round: Round | None = None
    """Set when the step verified (or missed) a proposal; None on a path without speculation."""
    queue_seconds: float | None = None
    """Time the request waited in the engine before it was first scheduled; on the first chunk only."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """On the first chunk when asked for: one entry per prompt token, None for the first."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The replica gave up one stream; nothing of it was committed beyond the chunks already sent."""

    request_id: str
    kind: FailureKind
    message: str


StepOutput = TokenChunk | StreamFailed
