"""What has this router seen and not yet safely handed over? Accounts of open requests, and numbered reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.generation import TokenChunk
from fleet.histogram import LogHistogram
from fleet.traffic import HardTrip, Outcome, PathTally, RouterReport, SamplingMode, stratum_of
from fleet.traffic_kinds import kind_of
from router.split import Assignment
from router.stopwatch import Stopwatch

SILENCE_SECONDS = 1.0
"""An open gap is charged each time it has grown by so much."""


@dataclass(slots=True)
class Speculation:
    """How speculation went for one request."""

    drafted: int = 0
    accepted: int = 0
    longest_draft: int = 0
    steps_by_accepted: Counter[int] = field(default_factory=Counter)
    """Accepted tokens -> rounds (with drafted > 0) that accepted so many."""


@dataclass(slots=True)
class Stream:
    """One choice of a request."""

    stopwatch: Stopwatch
    is_finished: bool = False
    charged_silences: int = 0


class Account:
    """Everything noted about one request; what happens is charged to the path it was assigned to."""

    def __init__(
        self, ledger: Ledger, request_id: str, assignment: Assignment, accepted_at: float, choices: int
    ) -> None:
        self.assignment = assignment
        self.serving_path = assignment.path
        self.streams = tuple(Stream(Stopwatch(accepted_at)) for _ in range(choices))
        self.speculation = Speculation()
        self._admitted_at = accepted_at
        self.queue_seconds: float | None = None
        self.fallbacks = 0
        self._sampling = SamplingMode.SAMPLED
        self._prompt_tokens = 0
        self._ledger = ledger
        self._request_id = request_id

    @property
    def output_tokens(self) -> int:
        return sum(stream.stopwatch.tokens for stream in self.streams)

    @property
    def is_finished(self) -> bool:
        return all(stream.is_finished for stream in self.streams)

    def admitted(self, at: float, prompt_tokens: int, sampling: SamplingMode) -> None:
        """The request got its slot and is now the path's."""
        tally = self._tally()
        tally.assigned += 1
        tally.newcomers += self.assignment.is_newcomer
        self._sampling, self._prompt_tokens = sampling, prompt_tokens
        tally.prompt_tokens += prompt_tokens
        self._admitted_at = at

    def note(self, choice: int, at: float, chunk: TokenChunk) -> None:
        """A chunk of a choice arrived."""
        stream, tally = self.streams[choice], self._tally()
        if chunk.token_ids:
            self._note_tokens(stream, tally, at, len(chunk.token_ids))
        if chunk.round is not None:
            self._note_round(tally, chunk.round.drafted, chunk.round.accepted, late=chunk.round.late)
        if chunk.queue_seconds is not None and stream.stopwatch.chunks <= 1:
            in_router = self._admitted_at - stream.stopwatch.accepted_at
            self.queue_seconds = in_router + chunk.queue_seconds
            tally.queue.add(self.queue_seconds)
        if chunk.finish is not None:
            self._finish(stream, tally, chunk.finish.value)

    def fell_back(self, path: str) -> None:
        """The serving path failed; the request goes on elsewhere."""
        self.fallbacks += 1
        self.serving_path = path
        if self.fallbacks == 1:
            self._tally().fallbacks += 1

    def charge_silence(self, now: float) -> None:
        """Charge every full second of an open gap, so that a stream that hangs cannot look perfect.

        After the first token each such second also counts as one `itl` value: the lower bound of what the
        awaited token will have. It stands for at least one token that a working stream would have brought by then.
        `ttft` and `gap` stay as they are published; what they will at least become is kept beside them.
        """
        for stream in self.streams:
            # Time in the router's own queue is no silence of the path.
            gap = min(stream.stopwatch.open_gap(now), now - self._admitted_at)
            silences = int(gap / SILENCE_SECONDS)
            if stream.is_finished or silences <= stream.charged_silences:
                continue
            new = silences - stream.charged_silences
            stream.charged_silences = silences
            tally = self._tally()
            tally.stalled += new
            bound = stream.stopwatch.itl_so_far(now)
            if bound is None:
                tally.waiting.add(now - stream.stopwatch.accepted_at, new)
                continue
            tally.itl.add(bound, new)
            tally.silence.add(stream.stopwatch.open_gap(now), new)
            tally.stall.add(1.0 + (stream.stopwatch.stall_so_far(now) or 0.0), new)

    def close(self, outcome: Outcome) -> None:
        """The request is over."""
        tally = self._tally()
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        if self.speculation.drafted:
            value = 1 + self.speculation.accepted / self.speculation.drafted
            tally.request_acceptance.add(value)
            if self.assignment.is_typical:
                stratum = stratum_of(self._prompt_tokens, self._sampling)
                tally.acceptance_by.setdefault(stratum, LogHistogram()).add(value)
        if outcome is Outcome.DONE and self.assignment.is_typical:
            kind = kind_of(self._prompt_tokens, self.output_tokens, self._sampling)
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
        self._ledger.forget(self._request_id)

    def _tally(self) -> PathTally:
        return self._ledger.tally(self.assignment)

    def _note_tokens(self, stream: Stream, tally: PathTally, at: float, tokens: int) -> None:
        lap = stream.stopwatch.lap(at, tokens)
        tally.output_tokens += tokens
        stream.charged_silences = 0
        if lap.gap is None:
            tally.ttft.add(at - stream.stopwatch.accepted_at)
            return
        tally.gap.add(lap.gap)
        for value in lap.itl:
            tally.itl.add(value)

    def _note_round(self, tally: PathTally, drafted: int, accepted: int, *, late: bool) -> None:
        tally.late_rounds += late
        if not drafted:
            tally.empty_rounds += 1
            return
        tally.rounds += 1
        tally.drafted += drafted
        tally.accepted += accepted
        tally.rejected_rounds += accepted == 0
        for position in range(accepted):
            tally.accepted_at[position] = tally.accepted_at.get(position, 0) + 1
        mine = self.speculation
        mine.drafted += drafted
        mine.accepted += accepted
        mine.longest_draft = max(mine.longest_draft, drafted)
        mine.steps_by_accepted[accepted] += 1

    def _finish(self, stream: Stream, tally: PathTally, reason: str) -> None:
        stream.is_finished = True
        tally.finish_reasons[reason] = tally.finish_reasons.get(reason, 0) + 1
        if stream.stopwatch.tpot is not None:
            tally.tpot.add(stream.stopwatch.tpot)
        if stream.stopwatch.e2e is not None:
            tally.e2e.add(stream.stopwatch.e2e)
        if stream.stopwatch.stall is not None:
            tally.stall.add(1.0 + stream.stopwatch.stall)


class Ledger:
    """Counts deltas and cuts them into reports.

    At most one report is outstanding: it is handed out unchanged until it is acknowledged, while news gathers
    for the next. So everything counts exactly once, and a controller that is away costs no memory.
    """

    def __init__(self, router_id: str, pid: int = 0) -> None:
        self._router_id = router_id
        self._pid = pid
        self._tallies: dict[Assignment, PathTally] = {}
        self._accounts: dict[str, Account] = {}
        self._trips: list[HardTrip] = []
        self._outstanding: RouterReport | None = None
        self._last_sequence = 0

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Streams open now, by serving path."""
        return _open_streams(self._accounts.values())

    @property
    def open_requests(self) -> Mapping[str, int]:
        """Compared requests open now, by assigned path."""
        accounts = self._accounts.values()
        return dict(Counter(account.assignment.path for account in accounts if account.assignment.is_compared))

    @property
    def has_trips(self) -> bool:
        """Whether a hard trip still waits to be put into a report or acknowledged."""
        return bool(self._trips) or (self._outstanding is not None and bool(self._outstanding.hard_trips))

    @property
    def has_outstanding(self) -> bool:
        """Whether a report was handed out that has not been acknowledged."""
        return self._outstanding is not None

    def open(self, request_id: str, assignment: Assignment, accepted_at: float, choices: int) -> Account:
        """Start the account of an admitted request; its id must be new."""
        account = Account(self, request_id, assignment, accepted_at, choices)
        self._accounts[request_id] = account
        return account

    def turned_away(self, path: str, outcome: Outcome) -> None:
        """A request ended before it got a slot; it takes no part in the comparison."""
        tally = self.tally(Assignment(path, is_compared=False))
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1

    def tripped(self, trip: HardTrip) -> None:
        self._trips.append(trip)

    def tally(self, assignment: Assignment) -> PathTally:
        """What has gathered since the last report was cut."""
        tally = self._tallies.get(assignment)
        if tally is None:
            tally = self._tallies[assignment] = PathTally()
        return tally

    def forget(self, request_id: str) -> None:
        self._accounts.pop(request_id, None)

    def next_report(self, now: float, *, applied_split: int, queued: int) -> RouterReport:
        """The report to send: the outstanding one as it was, else a new one with all news, perhaps none."""
        if self._outstanding is not None:
            return self._outstanding
        for account in self._accounts.values():
            account.charge_silence(now)
        tallies, self._tallies = self._tallies, {}
        trips, self._trips = tuple(self._trips), []
        self._last_sequence += 1
        self._outstanding = RouterReport(
            router_id=self._router_id,
            sequence=self._last_sequence,
            applied_split=applied_split,
            compared=_summed((key, tally) for key, tally in tallies.items() if key.is_compared),
            served=_summed(tallies.items()),
            hard_trips=trips,
            in_flight=self.in_flight,
            typical=_open_streams(account for account in self._accounts.values() if account.assignment.is_typical),
            open=self.open_requests,
            control=_summed((key, tally) for key, tally in tallies.items() if key.is_control),
            queued=queued,
            pid=self._pid,
        )
        return self._outstanding

    def acknowledge(self, sequence: int) -> None:
        """The controller has safely stored everything up to this report."""
        if self._outstanding is not None and self._outstanding.sequence <= sequence:
            self._outstanding = None


def _open_streams(accounts: Iterable[Account]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for account in accounts:
        counts[account.serving_path] += sum(not stream.is_finished for stream in account.streams)
    return dict(counts)


def _summed(tallies: Iterable[tuple[Assignment, PathTally]]) -> Mapping[str, PathTally]:
    """By path; fresh tallies, because several sums are made of the same ones."""
    sums: dict[str, PathTally] = {}
    for assignment, tally in tallies:
        sums.setdefault(assignment.path, PathTally()).merge(tally)
    return sums
