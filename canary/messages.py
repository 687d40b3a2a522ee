"""How does a notice read for whoever receives it? The body of a webhook's request, by format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from canary.notices import Notice
from fleet.config import WebhookConfig
from fleet.notices import NoticeKind

_SIGNS = {
    NoticeKind.STEP: "▶",
    NoticeKind.HOLD: "⏸",
    NoticeKind.PROMOTION: "✔",
    NoticeKind.ROLLBACK: "✖",
    NoticeKind.ABORT: "■",
}


def message(webhook: WebhookConfig, number: int, notice: Notice) -> Mapping[str, Any]:
    """JSON-ready; `number` is the event's in the journal, the same whenever the notice is sent again."""
    return _FORMATS[webhook.format](number, notice)


def _json(number: int, notice: Notice) -> Mapping[str, Any]:
    return {"id": number, **asdict(notice)}


def _slack(_: int, notice: Notice) -> Mapping[str, Any]:
    """https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks: `text` in mrkdwn."""
    where = f"`{notice.stable}` → `{notice.canary}`, step {notice.step} of {notice.steps}, {notice.weight:g} %"
    return {"text": f"{_SIGNS[notice.kind]} *{notice.rollout}* {notice.kind} ({where})\n{_escaped(notice.summary)}"}


def _escaped(text: str) -> str:
    """Slack's three control characters."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _grafana(_: int, notice: Notice) -> Mapping[str, Any]:
    """Grafana's annotations API: milliseconds since the epoch, tags to choose by, text."""
    tags = ["fleet", notice.kind.value, notice.rollout, notice.canary]
    return {"time": round(notice.at * 1000), "tags": tags, "text": f"{notice.rollout}: {notice.summary}"}


_FORMATS: Mapping[str, Callable[[int, Notice], Mapping[str, Any]]] = {
    "json": _json,
    "slack": _slack,
    "grafana": _grafana,
}
