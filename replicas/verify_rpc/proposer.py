"""The target session between two threads: the engine's, which asks and waits, and the event loop's, which talks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Condition
from typing import Protocol

from fleet.clock import Clock
from replicas.speculation.messages import (
    Closing,
    DraftMessage,
    Hello,
    Opening,
    Proposal,
    Refused,
    SequenceVerdict,
    TargetMessage,
    Welcome,
)
from replicas.speculation.proposer import ProposerState, Want
from replicas.speculation.target_session import SessionCounters, TargetSession, TargetSettings


class DraftLink(Protocol):
    """The way to one draft, for as long as its stream lives."""

    def send(self, messages: Sequence[TargetMessage]) -> None:
        """Hand messages to the stream in order; callable from any thread, never blocks."""


class RemoteProposer:
    """A draft worker, wherever it runs, as a `Proposer`.

    The server attaches one stream at a time; a newer draft replaces the older one. Waiting in `propose` ends
    when all proposals are in, when the draft is lost, or at the round's deadline.
    """

    def __init__(self, settings: TargetSettings, clock: Clock) -> None:
        self._session = TargetSession(settings)
        self._clock = clock
        self._changed = Condition()
        self._link: DraftLink | None = None

    # From the engine's thread.

    def open(self, opening: Opening) -> None:
        with self._changed:
            self._tell(self._session.open(opening, self._clock.monotonic()))

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        with self._changed:
            now = self._clock.monotonic()
            while (until := self._session.wait_until(wants, now)) is not None:
                self._changed.wait(until - now)
                now = self._clock.monotonic()
            return self._session.collect(wants, now)

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        with self._changed:
            self._tell(self._session.settle(verdicts, self._clock.monotonic()))

    def close(self, closing: Closing) -> None:
        with self._changed:
            self._tell(self._session.close(closing))

    def state(self) -> ProposerState:
        with self._changed:
            return self._session.state()

    @property
    def counters(self) -> SessionCounters:
        return self._session.counters

    # From the event loop.

    def attach(self, hello: Hello, link: DraftLink) -> bool:
        """Answer a Hello through `link`; True when the draft was taken on, in place of any earlier one."""
        with self._changed:
            answer: Welcome | Refused = self._session.greet(hello, self._clock.monotonic())
            link.send([answer])
            if isinstance(answer, Refused):
                return False
            self._link = link
            self._changed.notify_all()
            return True

    def deliver(self, message: DraftMessage, link: DraftLink) -> None:
        """Take in a message of the stream that `link` leads to; ignored once that stream was replaced."""
        with self._changed:
            if self._link is link:
                self._session.receive(message, self._clock.monotonic())
                self._changed.notify_all()

    def detach(self, link: DraftLink) -> None:
        """That stream has ended; nothing when it was replaced before."""
        with self._changed:
            if self._link is link:
                self._link = None
                self._session.lose()
                self._changed.notify_all()

    def _tell(self, messages: Sequence[TargetMessage]) -> None:
        if messages and self._link is not None:
            self._link.send(messages)
