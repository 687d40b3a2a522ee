"""What one streamed chat completion said, read event by event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.traffic import Outcome
from router.stopwatch import Stopwatch


@dataclass(slots=True)
class Answer:
    """Text, latency and figures of one answer; `feed` takes the data of its server-sent events in order."""

    watch: Stopwatch
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    path: str | None = None
    """The path that was assigned, from the `fleet` object of the usage chunk's `metrics`."""
    fallbacks: int = 0
    """How often the request went on elsewhere because a path or replica failed it."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds_by_accepted: tuple[int, ...] = ()
    """How many verify rounds accepted 0, 1, … drafted tokens."""
    queue_seconds: float | None = None
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """(arrival, tokens) of every event that brought tokens."""
    itl: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    is_ended: bool = False

    def feed(self, data: str, arrived: float) -> None:
        """Take one event's data. Raises `ValueError` where it is neither `[DONE]` nor a JSON object."""
        if data == "[DONE]":
            self.is_ended = True
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event must be a JSON object")
        if error := event.get("error"):
            self.error = str(error.get("message", error)) if isinstance(error, dict) else str(error)
            return
        has_text = self._take_choice(event)
        self._take_usage(event, has_text, arrived)
        if metrics := event.get("metrics"):
            self._take_metrics(metrics)

    def outcome(self) -> Outcome:
        """Done only where the model gave a reason to finish and the stream ended as announced."""
        if self.error is not None:
            return Outcome.FAILED
        if self.finish_reason is not None and self.is_ended:
            return Outcome.DONE
        return Outcome.TRUNCATED

    def _take_choice(self, event: Mapping[str, Any]) -> bool:
        choices = event.get("choices") or ()
        if not choices:
            return False
        piece = choices[0].get("delta", {}).get("content") or ""
        self.text += piece
        self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
        return bool(piece)

    def _take_usage(self, event: Mapping[str, Any], has_text: bool, arrived: float) -> None:
        """Count this event's tokens: by running usage where the server sends it, else one per event with text."""
        tokens = int(has_text)
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            tokens = usage["completion_tokens"] - self.output_tokens
        if tokens > 0 and event.get("choices"):
            self.chunks.append((arrived, tokens))
            lap = self.watch.lap(arrived, tokens)
            self.itl.extend(lap.itl)
            if lap.gap is not None:
                self.gaps.append(lap.gap)
        self.output_tokens += tokens

    def _take_metrics(self, metrics: Mapping[str, Any]) -> None:
        fleet = metrics.get("fleet") or {}
        self.path = fleet.get("path")
        self.fallbacks = fleet.get("fallbacks", 0)
        if (queue_ms := metrics.get("queue_time_ms")) is not None:
            self.queue_seconds = queue_ms / 1000
        speculative = metrics.get("speculative_decoding") or {}
        self.drafted = speculative.get("num_draft_tokens", 0)
        self.accepted = speculative.get("num_accepted_draft_tokens", 0)
        self.rounds_by_accepted = tuple(speculative.get("acceptance_histogram") or ())
