"""What was asked and how long was the answer? Read from one request and its answer as they pass by."""

from __future__ import annotations

import json
from typing import Any

from deploy.evidence.capture.reservoir import LARGEST_CHARACTERS, CapturedRequest, LeftOut, category_of
from deploy.evidence.capture.scrub import scrub

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
CHARACTERS_PER_TOKEN = 4
"""To place a request in a bucket where the answer tells no usage."""
LONGEST_LINE = 1_000_000
DEEPEST = 50
"""Lists and objects within each other; no chat has so many, and each is a call of a function on the stack."""


class Observed:
    """One chat completion on its way: feed it the answer's bytes, then ask for the captured request."""

    def __init__(self, body: bytes, arrived_seconds: float) -> None:
        """A body that is no chat makes an observation that is never captured."""
        self._arrived_seconds = arrived_seconds
        self._asked = _json_object(body) or {}
        self._rest = b""
        self._pieces = 0
        self._usage: dict[str, Any] = {}
        self._is_finished = False

    def feed(self, data: bytes) -> None:
        """The answer's next bytes: server-sent events, or one JSON body. Whatever they are, it does not raise."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""

    def request(self, request_id: str) -> CapturedRequest | LeftOut:
        """The request, scrubbed, or why it is not to be kept. With long messages it takes its time: call it aside."""
        self._line(self._rest)
        messages = self._asked.get("messages")
        if not self._is_finished:
            return LeftOut.UNFINISHED
        if not _is_chat(messages):
            return LeftOut.NO_CHAT
        characters = len(json.dumps(messages))
        if characters > LARGEST_CHARACTERS:
            return LeftOut.TOO_LONG
        prompt = _count(self._usage.get("prompt_tokens")) or characters // CHARACTERS_PER_TOKEN
        output = _count(self._usage.get("completion_tokens")) or self._pieces
        sampling = {name: self._asked[name] for name in SAMPLING_FIELDS if self._asked.get(name) is not None}
        return CapturedRequest(
            id=request_id,
            category=category_of(prompt, output, is_greedy=sampling.get("temperature") == 0),
            messages=scrub(messages),
            max_tokens=_count(self._asked.get("max_completion_tokens")) or _count(self._asked.get("max_tokens")),
            sampling=sampling,
            stream=bool(self._asked.get("stream")),
            arrived_seconds=round(self._arrived_seconds, 3),
            prompt_tokens=prompt,
            output_tokens=output,
        )

    def _line(self, line: bytes) -> None:
        event = _json_object(line.removeprefix(b"data:").strip())
        if event is None:
            return
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage or self._usage
        for choice in _objects(event.get("choices")):
            piece = choice.get("delta") or choice.get("message")
            self._pieces += isinstance(piece, dict) and bool(piece.get("content"))
            self._is_finished = self._is_finished or choice.get("finish_reason") is not None


def _is_chat(messages: object) -> bool:
    is_list = isinstance(messages, list) and bool(messages) and all(isinstance(item, dict) for item in messages)
    return is_list and not _is_deeper(messages, DEEPEST)


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
