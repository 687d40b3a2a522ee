"""The drafting thread: takes in messages, runs the session's work, hands its answers to the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from fleet.clock import Clock
from replicas.draft_engine import DraftEngine
from replicas.speculation.draft_session import DraftLimits, DraftSession
from replicas.speculation.messages import DraftMessage, SequenceMessage

Send = Callable[[Sequence[DraftMessage]], None]
"""Hands messages to the stream; callable from any thread, never blocks."""

LEASE_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SessionBegan:
    draft_ahead: bool
    is_judged: bool
    """Acceptance is by rejection."""
    send: Send


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The stream broke; everything that belonged to it is freed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The thread shall end."""


LoopEvent = SessionBegan | SessionEnded | Stop | SequenceMessage


class DraftLoop:
    """Owns the engine and the session; `put` is the only thing other threads may call."""

    def __init__(self, engine: DraftEngine, limits: DraftLimits, clock: Clock) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._inbox: SimpleQueue[LoopEvent] = SimpleQueue()
        self._session: DraftSession | None = None
        self._send: Send | None = None

    def put(self, event: LoopEvent) -> None:
        self._inbox.put(event)

    def run(self) -> None:
        """Draft until told to stop. News is looked for between any two forward passes."""
        has_work = False
        try:
            while self._take_events(is_idle=not has_work):
                has_work = self._step()
        finally:
            self._engine.release_all()

    def _take_events(self, *, is_idle: bool) -> bool:
        """Apply everything that has arrived, waiting for something when idle; False = stop."""
        try:
            event = self._inbox.get(timeout=LEASE_CHECK_SECONDS) if is_idle else self._inbox.get_nowait()
            while not isinstance(event, Stop):
                self._apply(event)
                event = self._inbox.get_nowait()
        except Empty:
            return True
        return False

    def _apply(self, event: SessionBegan | SessionEnded | SequenceMessage) -> None:
        match event:
            case SessionBegan(draft_ahead, is_judged, send):
                self._engine.release_all()
                self._session = DraftSession(self._limits, draft_ahead=draft_ahead, is_judged=is_judged)
                self._send = send
            case SessionEnded():
                self._engine.release_all()
                self._session, self._send = None, None
            case message:
                if self._session is not None:
                    self._session.receive(message, self._clock.monotonic())

    def _step(self) -> bool:
        """Say what is ready, then run one forward pass; False when there was nothing to run."""
        session = self._session
        if session is None:
            return False
        session.expire(self._clock.monotonic())
        self._engine.release(session.take_released())
        self._speak(session)
        works = session.next_work()
        if not works:
            return False
        run = self._engine.run(works)
        if run.ran_out_of_memory:
            session.run_out_of_memory()
        for sequence_id in run.refused:
            session.refuse(sequence_id)
        for work, drafted in run.done:
            session.record(work, drafted)
        self._speak(session)
        return True

    def _speak(self, session: DraftSession) -> None:
        messages = session.outgoing(self._clock.monotonic())
        if messages and self._send is not None:
            self._send(messages)
