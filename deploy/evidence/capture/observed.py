"""What was asked and how long was the answer? Read from one request and its answer as they pass by."""

from __future__ import annotations

import json
from typing import Any

from deploy.evidence.capture.reservoir import LARGEST_CHARACTERS, CapturedRequest, category_of
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
        """The answer's next bytes: server-sent events, or one JSON body."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""

    def request(self, request_id: str) -> CapturedRequest | None:
        """The request, scrubbed; None where it was no chat, too long, or its answer did not end as it should."""
        self._line(self._rest)
        messages = self._asked.get("messages")
        if not self._is_finished or not _is_chat(messages):
            return None
        characters = len(json.dumps(messages))
        if characters > LARGEST_CHARACTERS:
            return None
        prompt = int(self._usage.get("prompt_tokens") or characters // CHARACTERS_PER_TOKEN)
        output = int(self._usage.get("completion_tokens") or self._pieces)
        sampling = {name: self._asked[name] for name in SAMPLING_FIELDS if self._asked.get(name) is not None}
        return CapturedRequest(
            id=request_id,
            category=category_of(prompt, output, is_greedy=sampling.get("temperature") == 0),
            messages=scrub(messages),
            max_tokens=self._asked.get("max_completion_tokens") or self._asked.get("max_tokens"),
            sampling=sampling,
            stream=bool(self._asked.get("stream")),
            arrived_seconds=round(self._arrived_seconds, 3),
            prompt_tokens=prompt,
            output_tokens=output,
        )

    def _line(self, line: bytes) -> None:
        event = _json_object(line.removeprefix(b"data: ").strip())
        if event is None:
            return
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            piece = choice.get("delta") or choice.get("message") or {}
            self._pieces += bool(piece.get("content"))
            self._is_finished = self._is_finished or choice.get("finish_reason") is not None


def _is_chat(messages: object) -> bool:
    return isinstance(messages, list) and bool(messages) and all(isinstance(message, dict) for message in messages)


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
