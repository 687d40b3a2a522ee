"""Who has still to be told what? Sends the journal's notices to webhooks, again and again until they are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
import tenacity

from canary.messages import message
from canary.notices import Notice
from fleet.config import WebhookConfig, resolve_secret
from fleet.errors import ConfigError, FleetError, Unavailable

QUEUE_NOTICES = 100
"""A webhook that is down for longer is told of the newest so many only."""
LOOK_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 60.0

_LOG = logging.getLogger(__name__)


class Outbox(Protocol):
    """What the notifier needs of the desk: notices on disk, and how far each webhook has been told."""

    @property
    def last_notice(self) -> int:
        """Number of the newest notice on disk."""

    def notices(self, after: int, limit: int) -> list[tuple[int, Notice]]:
        """The newest `limit` notices above a number, oldest first. Raises Unavailable."""

    def told(self, webhook: str) -> int:
        """Up to which notice a webhook has been told."""

    def note_told(self, webhook: str, number: int) -> None:
        """A webhook has been told; on disk with the next tick."""

    def note_failure(self, webhook: str) -> None:
        """A webhook did not take a try; on disk with the next tick."""


class NotTaken(FleetError):
    """The webhook answered that it does not take this notice, for now or for good."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered {status}")
        self.is_retryable = status in (408, 429) or status >= 500


class Notifier:
    """One task per webhook, so that one that hangs delays nobody else, and no tick waits for any.

    A notice counts as told once the journal has that on disk, so a controller that dies in between tells it
    twice, never not at all. Network failures and answers 408, 429 and 5xx are tried again with growing
    pauses for as long as it takes; any other refusal is logged and passed over.
    """

    def __init__(self, webhooks: Mapping[str, WebhookConfig], outbox: Outbox) -> None:
        self._webhooks = {name: _resolved(name, webhook) for name, webhook in webhooks.items()}
        self._outbox = outbox
        self._wait = tenacity.wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT_SECONDS, jitter=0.5)

    async def run(self) -> None:
        """Send until cancelled."""
        if not self._webhooks:
            return
        async with httpx.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as group:
            for name, webhook in self._webhooks.items():
                group.create_task(self._serve(http, name, webhook))

    async def _serve(self, http: httpx.AsyncClient, name: str, webhook: WebhookConfig) -> None:
        while True:
            if self._outbox.last_notice > self._outbox.told(name):
                await self._catch_up(http, name, webhook)
            await asyncio.sleep(LOOK_SECONDS)

    async def _catch_up(self, http: httpx.AsyncClient, name: str, webhook: WebhookConfig) -> None:
        try:
            notices = self._outbox.notices(self._outbox.told(name), QUEUE_NOTICES)
        except Unavailable as error:
            _LOG.warning("webhook %s has to wait: %s", name, error)
            return
        for number, notice in notices:
            if notice.kind in webhook.on:
                await self._tell(http, name, webhook, message(webhook, number, notice))
            self._outbox.note_told(name, number)

    async def _tell(self, http: httpx.AsyncClient, name: str, webhook: WebhookConfig, body: Mapping[str, Any]) -> None:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_worth_another_try),
            wait=self._wait,
            before_sleep=lambda state: self._note_failure(name, state),
        )
        try:
            await retrying(_post, http, webhook, body)
        except NotTaken as refusal:
            self._outbox.note_failure(name)
            _LOG.error("webhook %s does not take a notice, which is passed over: %s", name, refusal)

    def _note_failure(self, name: str, state: tenacity.RetryCallState) -> None:
        self._outbox.note_failure(name)
        _LOG.warning("webhook %s, try %d: %s", name, state.attempt_number, _why(state))


async def _post(http: httpx.AsyncClient, webhook: WebhookConfig, body: Mapping[str, Any]) -> None:
    """Raises httpx.TransportError or NotTaken."""
    answer = await http.post(webhook.url, json=body, headers=webhook.headers, timeout=webhook.timeout_s)
    if not answer.is_success:
        raise NotTaken(answer.status_code)


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError) or (isinstance(error, NotTaken) and error.is_retryable)


def _why(state: tenacity.RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome else None
    return f"{type(error).__name__}: {error}"


def _resolved(name: str, webhook: WebhookConfig) -> WebhookConfig:
    """With its secrets looked up. Raises ConfigError, without them, where no request can be made of it."""
    url = resolve_secret(webhook.url)
    headers = {header: resolve_secret(value) for header, value in webhook.headers.items()}
    try:
        request = httpx.Request("POST", url, headers=headers)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"controller.webhooks.{name}: url or headers cannot be sent: {error}") from error
    if request.url.scheme not in ("http", "https") or not request.url.host:
        raise ConfigError(f"controller.webhooks.{name}.url must begin with http:// or https://")
    return webhook.model_copy(update={"url": url, "headers": headers})
