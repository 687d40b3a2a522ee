"""What does a client read in an answer? Bodies, usage, log-probabilities and per-request metrics, JSON-ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleet.errors import BadRequest, FleetError
from fleet.generation import FinishReason, TokenChunk, TokenLogprob
from router.intake import Api, Job
from router.ledger import Account, Speculation

if TYPE_CHECKING:
    from fleet.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""What JSON, which has no infinity, shows for a probability of 0; the value that vLLM uses."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one answer repeats."""

    response_id: str
    created: int
    model: str


def envelope(job: Job, created: int, model: str) -> Envelope:
    prefix = "chatcmpl" if job.style.api is Api.CHAT else "cmpl"
    return Envelope(f"{prefix}-{job.request_id}", created, model)


def error_body(error: FleetError) -> dict[str, Any]:
    """OpenAI's error shape."""
    param, code = (error.param, error.code) if isinstance(error, BadRequest) else (None, None)
    return {"error": {"message": str(error), "type": error.openai_type, "param": param, "code": code}}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def metrics_of(job: Job, account: Account) -> dict[str, Any] | None:
    """vLLM's per-request `metrics` object, ours under `fleet`; None where the request had several choices.

    `tokens_per_second` is the decode rate, 1 / tpot; times are in milliseconds by the definitions of `Stopwatch`.
    """
    if job.choices > 1:
        return None
    stopwatch = account.streams[0].stopwatch
    tpot = stopwatch.tpot
    decode = None if stopwatch.e2e is None or stopwatch.ttft is None else stopwatch.e2e - stopwatch.ttft
    return {
        "time_to_first_token_ms": _ms(stopwatch.ttft),
        "generation_time_ms": _ms(decode),
        "queue_time_ms": _ms(account.queue_seconds),
        "mean_itl_ms": _ms(tpot),
        "tokens_per_second": round(1 / tpot, 3) if tpot else None,
        "speculative_decoding": _speculation(account.speculation),
        "fleet": {
            "path": account.assignment.path,
            "served_by": account.serving_path,
            "fallbacks": account.fallbacks,
            "seed": job.sampling.seed,
            "e2e_ms": _ms(stopwatch.e2e),
            "stall_share": None if stopwatch.stall is None else round(stopwatch.stall, 5),
            "tokens_per_chunk": stopwatch.tokens_per_chunk,
        },
    }


def _speculation(speculation: Speculation) -> dict[str, Any] | None:
    """Valid as AIPerf checks it: k+1 bins, Σ bins = steps, Σ j·bin_j = accepted ≤ drafted."""
    by_accepted = speculation.steps_by_accepted
    steps = sum(by_accepted.values())
    if not steps:
        return None
    return {
        "mean_acceptance_length": 1 + speculation.accepted / steps,
        "draft_acceptance_rate": speculation.accepted / speculation.drafted,
        "acceptance_histogram": [by_accepted[count] for count in range(speculation.longest_draft + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": speculation.accepted,
        "num_draft_tokens": speculation.drafted,
        "num_spec_tokens": speculation.longest_draft,
    }


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for entry in entries:
        top = [_chat_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
        content.append({**_chat_token(tokenizer, entry.token_id, entry.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, LOWEST_LOGPROB),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


@dataclass(slots=True)
class CompletionLogprobs:
    """The `logprobs` of a text choice, piece by piece: offsets count characters from the start of its text."""

    tokenizer: Tokenizer
    offset: int = 0

    def render(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """One entry per token; None stands for the first prompt token, which nothing predicts."""
        tokens, offsets = [], []
        for token_id in token_ids:
            text = self.tokenizer.token_text(token_id)
            tokens.append(text)
            offsets.append(self.offset)
            self.offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [None if entry is None else max(entry.logprob, LOWEST_LOGPROB) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """By token text, the sampled token included; of two tokens that read alike the likelier stays."""
        by_text: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            text = self.tokenizer.token_text(token_id)
            by_text[text] = max(logprob, by_text.get(text, LOWEST_LOGPROB))
        return by_text


@dataclass(slots=True)
class Choice:
    """One choice of an answer that is not streamed, as it gathers."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None

    def begin(self, job: Job, choice: int) -> None:
        """With `echo` the prompt is the first of the text."""
        if job.style.echoed:
            self.text.append(job.style.echoed[choice // job.choices_per_prompt])
            if job.sampling.prompt_logprobs:
                self.token_ids.extend(job.prompt_of(choice))

    def add(self, chunk: TokenChunk) -> None:
        self.text.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.prompt_logprobs)
        self.logprobs.extend(chunk.logprobs)
        self.finish = chunk.finish
        self.stop_reason = chunk.stop_reason


def full_body(
    envelope: Envelope, job: Job, choices: Sequence[Choice], account: Account, tokenizer: Tokenizer
) -> Mapping[str, Any]:
    """The whole answer of a request that is not streamed."""
    is_chat = job.style.api is Api.CHAT
    render = _chat_choice if is_chat else _text_choice
    return {
        "id": envelope.response_id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [
            {
                "index": index,
                **render(choice, tokenizer, has_logprobs=job.sampling.logprobs is not None),
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_of(job.prompt_tokens, 0 if job.style.is_echo_only else account.output_tokens),
        "metrics": metrics_of(job, account),
    }


def _chat_choice(choice: Choice, tokenizer: Tokenizer, *, has_logprobs: bool) -> dict[str, Any]:
    sampled = [entry for entry in choice.logprobs if entry is not None]
    return {
        "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
        "logprobs": chat_logprobs(tokenizer, sampled) if has_logprobs else None,
    }


def _text_choice(choice: Choice, tokenizer: Tokenizer, *, has_logprobs: bool) -> dict[str, Any]:
    rendered = CompletionLogprobs(tokenizer).render(choice.token_ids, choice.logprobs) if has_logprobs else None
    return {"text": "".join(choice.text), "logprobs": rendered}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
