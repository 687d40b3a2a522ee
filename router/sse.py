"""How does a chunk look on the wire of a streamed answer? One event per engine step, as bytes.

All but the text is rendered once per stream; the text of a step is the only thing encoded for each event.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import FleetError
from fleet.generation import TokenChunk
from router.answers import CompletionLogprobs, Envelope, chat_logprobs, error_body, metrics_of, usage_of
from router.intake import Api, Job
from router.ledger import Account

if TYPE_CHECKING:
    from fleet.tokenizer import Tokenizer

STREAM_VERSION: Final = 1
"""Of what one event carries, which every latency depends on: raised where measurements of two would not compare."""
DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"


class EventWriter:
    """The events of one streamed answer.

    A chat's first event names the role. Each step that completed some text is one event with all of it. The finish
    reason rides on the last step's event. A step whose text is still held back (a stop string or a character may
    be under way) has nothing to show and no event, unless log-probabilities or continuous usage were asked for.
    """

    def __init__(self, envelope: Envelope, job: Job, account: Account, tokenizer: Tokenizer) -> None:
        self._job = job
        self._account = account
        self._tokenizer = tokenizer
        self._is_chat = job.style.api is Api.CHAT
        self._shows_every_step = job.sampling.logprobs is not None or job.style.has_continuous_usage
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        fields = {"id": envelope.response_id, "object": kind, "created": envelope.created, "model": envelope.model}
        self._head = b"data: " + _json(fields)[:-1]
        self._started: set[int] = set()
        self._tokens = 0
        self._logprobs = [CompletionLogprobs(tokenizer) for _ in range(0 if self._is_chat else job.choices)]
        opening = b'"delta":{"content":' if self._is_chat else b'"text":'
        self._text_heads = [
            self._head + b',"choices":[{"index":%d,' % choice + opening for choice in range(job.choices)
        ]
        closing = b"}" if self._is_chat else b""
        self._text_tail = closing + b',"logprobs":null,"finish_reason":null}]' + _END

    def chunk(self, choice: int, chunk: TokenChunk) -> bytes:
        """The events of one step of one choice: none, one, or with the role two."""
        self._tokens += len(chunk.token_ids)
        if choice not in self._started:
            return self._first(choice, chunk)
        if chunk.finish is None and not self._shows_every_step:
            return self._text_heads[choice] + _json(chunk.text) + self._text_tail if chunk.text else b""
        return self._complete(choice, chunk, chunk.text)

    def usage(self) -> bytes:
        """The usage event, which comes last and has no choices; empty where it was not asked for."""
        if not self._job.style.has_usage_chunk:
            return b""
        usage = usage_of(self._job.prompt_tokens, self._tokens)
        metrics = metrics_of(self._job, self._account)
        return self._head + b',"choices":[],"usage":' + _json(usage) + b',"metrics":' + _json(metrics) + _END

    def _first(self, choice: int, chunk: TokenChunk) -> bytes:
        self._started.add(choice)
        text = chunk.text
        if self._job.style.echoed:
            text = self._job.style.echoed[choice // self._job.choices_per_prompt] + text
        role = b""
        if self._is_chat:
            role = self._text_heads[choice].removesuffix(b'{"content":')
            role += b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' + _END
        if not text and chunk.finish is None and not self._shows_every_step:
            return role
        return role + self._complete(choice, chunk, text)

    def _complete(self, choice: int, chunk: TokenChunk, text: str) -> bytes:
        shown: dict[str, Any] = {"index": choice}
        if self._is_chat:
            shown["delta"] = {"content": text} if text else {}
        else:
            shown["text"] = text
        shown["logprobs"] = self._logprobs_of(choice, chunk)
        shown["finish_reason"] = chunk.finish
        if chunk.finish is not None:
            shown["stop_reason"] = chunk.stop_reason
        usage = b""
        if self._job.style.has_continuous_usage:
            usage = b',"usage":' + _json(usage_of(self._job.prompt_tokens, self._tokens))
        return self._head + b',"choices":[' + _json(shown) + b"]" + usage + _END

    def _logprobs_of(self, choice: int, chunk: TokenChunk) -> dict[str, Any] | None:
        if self._job.sampling.logprobs is None:
            return None
        if self._is_chat:
            return chat_logprobs(self._tokenizer, chunk.logprobs)
        prompt = self._job.prompt_of(choice) if chunk.prompt_logprobs else ()
        return self._logprobs[choice].render((*prompt, *chunk.token_ids), (*chunk.prompt_logprobs, *chunk.logprobs))


def error_event(error: FleetError) -> bytes:
    """The last event of a stream that cannot go on; no [DONE] follows."""
    return b"data: " + _json(error_body(error)) + b"\n\n"


def _json(value: object) -> bytes:
    """ASCII, so that no text, not even half a surrogate pair, can break the framing."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
