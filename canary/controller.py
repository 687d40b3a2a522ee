"""The tick: take in reports, judge, advance, write the journal, and only then publish the split."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from canary import commands
from canary.calibrated import Advice, advise, read_calibration
from canary.desk import Desk
from canary.drift_watch import DriftWatch
from canary.events import (
    BY_CONTROLLER,
    CapacityChanged,
    HardTripped,
    OperatorAborted,
    OperatorRetried,
    RolloutStarted,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.explain import explain
from canary.fleet_view import STALE_SECONDS, FleetView
from canary.inbox import Inbox
from canary.journal import Journal
from canary.notifier import Notifier
from canary.outlook import outlook
from canary.plan import PathFacts, Plan, cautions, doubts, lone_hosts, misfits, read_plan
from canary.power import blind_spots
from canary.rates import Rates, Totals
from canary.rollout_state import State
from canary.status import (
    CommandAnswer,
    Explanation,
    ExportedEvent,
    FleetStatus,
    HistoryEntry,
    Outlook,
    Overview,
    RolloutStatus,
)
from canary.status_view import Picture, fleet_status, metrics_of, path_status, rollout_status, trend_moment
from canary.trend import GRAINS, Trend
from fleet.clock import Clock
from fleet.config import ControllerConfig, resolve_secret
from fleet.errors import BadRequest, ConfigError, Conflict, NotFound, Unavailable
from fleet.metrics import render
from fleet.traffic import COMMIT_SECONDS, HardTrip, ReplicaReport, ReportReply, RouterReport

LOOK_SECONDS = 1.0
"""Between two looks at how busy replicas are, who report about as often."""
KV_FULL = 0.9
"""Share of the KV cache in use that counts as pressure where the plan does not say."""

LONGEST_PAGE = 1000
"""Events in one answer of `export`."""
RECENT_EVENTS = 200
"""Events in one answer of `overview`."""

_LOG = logging.getLogger(__name__)


class Controller:
    """One per fleet. Not thread-safe: call it from one thread, such as an event loop's."""

    def __init__(
        self, config: ControllerConfig, desk: Desk, journal: Journal, view: FleetView, model_name: str
    ) -> None:
        self._config = config
        self._desk = desk
        self._journal = journal
        self._view = view
        self._model_name = model_name
        self._inbox = Inbox(desk.memory.sequences)
        self._notifier = Notifier(config.webhooks, desk)
        self._rates = Rates()
        self._trend = Trend()
        self._watch = DriftWatch()
        self._trips: list[HardTrip] = []
        self._opened_at = self._ticked_at = self._looked_at = desk.now()
        self._journal_failures = 0

    @classmethod
    def open(
        cls,
        config: ControllerConfig,
        *,
        paths: Mapping[str, PathFacts],
        stable: str,
        model_name: str,
        clock: Clock,
    ) -> Controller:
        """Go on from the journal, or begin with everything on `stable`. Raises ConfigError."""
        journal = Journal.open(resolve_secret(config.journal))
        desk = Desk.open(journal, stable, clock)
        desk.abandon_lost_paths(paths, stable)
        desk.enrol(config.webhooks)
        desk.commit()
        return cls(config, desk, journal, FleetView(paths, since=desk.now()), model_name)

    def close(self) -> None:
        self._journal.close()

    async def run(self) -> None:
        """Tick and notify until cancelled, or until another controller owns the journal (JournalTaken, in a group)."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notifier.run())
            await self._tick_forever()

    async def _tick_forever(self) -> None:
        while True:
            try:
                self.tick()
            except Unavailable as error:
                self._journal_failures += 1
                _LOG.error("tick not written, its news is kept: %s", error)
            await asyncio.sleep(self._config.tick_seconds)

    def report(self, report: RouterReport) -> ReportReply:
        """Take in a router's report and tell it the split.

        A hard trip is acted on before the reply.
        """
        now = self._desk.now()
        self._inbox.offer(report)
        self._view.router_reported(report, now)
        if report.hard_trips or now - self._ticked_at >= COMMIT_SECONDS:
            self.tick()
        acknowledged = self._inbox.acknowledged(report.router_id)
        elsewhere = self._view.open_elsewhere(report.router_id)
        return ReportReply(self._desk.split, acknowledged, self._view.ready_by_path(now), elsewhere)

    def replica_report(self, report: ReplicaReport) -> None:
        """Take in a replica's state of health. A replica that ran out of memory trips at once."""
        news = self._view.replica_reported(report, self._desk.now())
        if news.preemptions or news.draft_link:
            self._desk.memory.count(report.path, news.preemptions, news.draft_link)
            self._desk.touch(["counters"])
        if news.trips:
            self._trips += news.trips
            self.tick()

    def tick(self) -> None:
        """One pass. Raises Unavailable when the disk refuses; everything is kept for the next pass."""
        at = self._desk.now()
        self._trips += self._view.expire(at)
        for report in self._inbox.take():
            self._desk.count(report)
            self._trips += report.hard_trips
        while self._trips:
            self._desk.apply(HardTripped(at, self._trips.pop(0)))
        self._note_capacity(at)
        self._look(at)
        self._close_window(at)
        self._note_applied(at)
        self._desk.apply(Ticked(at))
        self._desk.commit()
        self._inbox.commit()
        if at - self._opened_at > STALE_SECONDS:
            self._desk.forget(self._inbox.forget(self._view.routers))
        self._ticked_at = at
        served = self._desk.memory.served
        self._watch.tick(at, self._desk.rollout, served, self._view)
        self._rates.sample(at, {path: Totals.of(tally) for path, tally in served.items()})
        self._trend.sample(trend_moment(self._picture(), self._desk.wall()), served)

    def _note_capacity(self, at: float) -> None:
        rollout = self._desk.rollout
        if rollout is None or rollout.plan.canary not in self._view.paths:
            return
        ready = self._view.ready(rollout.plan.canary)
        if rollout.state == State.PREPARING and (reasons := doubts(rollout.plan, self._view.fingerprints())):
            self._desk.apply(OperatorAborted(at, "; ".join(reasons), BY_CONTROLLER))
            return
        # Just after a start nobody has reported yet: that is no reason to take the canary out.
        if ready >= rollout.capacity.ready or at - self._opened_at > STALE_SECONDS:
            self._desk.apply(CapacityChanged(at, ready, self._view.paths[rollout.plan.canary].replicas))

    def _close_window(self, at: float) -> None:
        rollout, window = self._desk.rollout, self._desk.memory.window
        if rollout is None or window is None or at - window.opened < rollout.plan.window:
            return
        plan = rollout.plan
        closed = window.close(at, plan.stable, plan.canary, self._view.at_close())
        self._desk.apply(WindowClosed(at, closed))
        self._desk.open_window(at)

    def _look(self, at: float) -> None:
        """Note how busy the paths of the rollout are."""
        rollout, window = self._desk.rollout, self._desk.memory.window
        if rollout is None or window is None or at - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = at
        pressure = rollout.plan.guardrails.kv_pressure
        for path in {rollout.plan.stable, rollout.plan.canary} & set(self._view.paths):
            window.look(path, self._view.usage(path, KV_FULL if pressure is None else pressure.above))

    def _note_applied(self, at: float) -> None:
        rollout, split = self._desk.rollout, self._desk.split
        if rollout is None or rollout.is_applied or split.version != self._desk.memory.split.version:
            return
        if self._view.follows(split.version):
            seconds = at - self._desk.memory.split_at
            self._desk.apply(SplitApplied(at, split.version, len(self._view.routers), seconds))

    def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an operator's command; the answer is a `CommandAnswer`.

        Raises BadRequest on unusable arguments, NotFound without a rollout to act on, Conflict or
        InvalidTransition where the command does not fit the present state.
        """
        match name:
            case "start":
                answer = self._start(arguments)
            case "lint":
                errors, warnings = self._lint(arguments)
                answer = CommandAnswer(errors=errors, warnings=warnings)
                if not errors:
                    answer["outlook"] = self._outlook(arguments)
            case "list":
                answer = CommandAnswer(rollouts=self._journal.chronicle.summaries())
            case "explain":
                answer = CommandAnswer(explanation=self._explain(arguments))
            case "history":
                answer = CommandAnswer(events=self._history(arguments))
            case "export":
                answer = CommandAnswer(record=self._record(arguments))
            case "overview":
                answer = CommandAnswer(overview=self._overview(arguments))
            case "calibrated":
                answer = self._keep_calibration(arguments)
            case _:
                answer = self._move(name, arguments)
        return dict(answer)

    def _start(self, arguments: Mapping[str, Any]) -> CommandAnswer:
        raw = dict(commands.plan_in(arguments))
        errors, warnings = self._lint(arguments)
        if errors:
            raise BadRequest("; ".join(errors), param="plan")
        rollout = self._desk.rollout
        if rollout is not None and not rollout.is_over:
            raise Conflict(f"rollout '{rollout.id}' is {rollout.state} ({rollout.reason}): abort or promote it first")
        if commands.flag(arguments, "dry_run"):
            message = "the plan can be started"
            return CommandAnswer(message=message, warnings=warnings, outlook=self._outlook(arguments))
        self.tick()
        number = len(self._journal.chronicle.rollout_ids()) + 1
        started = self._desk.start(RolloutStarted(self._desk.now(), f"{raw['canary']}-{number}", raw))
        self._view.forget_losses(started.plan.canary, self._desk.now())
        self.tick()
        answer = self._moved(f"rollout '{started.id}' started", warnings)
        answer["outlook"] = self._outlook(arguments)
        return answer

    def _move(self, name: str, arguments: Mapping[str, Any]) -> CommandAnswer:
        event = commands.event_for(name, arguments, self._desk.now())
        if event is None:
            raise NotFound(f"no command '{name}'; there are: {', '.join(commands.known())}")
        rollout = self._desk.rollout
        if rollout is None:
            raise NotFound(f"there is no rollout to {event.verb}; start one")
        if isinstance(event, OperatorRetried):
            self._refuse_unfit(rollout.plan)
            self._view.forget_losses(rollout.plan.canary, event.at)
        self._desk.apply(event)
        self._desk.commit()
        return self._moved(commands.confirmation(event, self._desk.rollout or rollout))

    def _refuse_unfit(self, plan: Plan) -> None:
        problems = self._against(plan)
        if problems:
            raise Conflict("; ".join(problems))

    def _against(self, plan: Plan) -> list[str]:
        """What forbids a plan: this fleet, or what A/A rollouts showed of its acting by itself."""
        refusal = self._advice(plan).refusal if plan.mode == "automatic" else None
        unfit = misfits(plan, self._view.paths, self._desk.memory.stable) + doubts(plan, self._view.fingerprints())
        return unfit + ([] if refusal is None else [refusal])

    def _advice(self, plan: Plan) -> Advice:
        return advise(plan, self._desk.memory.calibrations, self._desk.wall())

    def _keep_calibration(self, arguments: Mapping[str, Any]) -> CommandAnswer:
        plan, rollout = read_plan(commands.plan_in(arguments)), self._rollout_in(arguments)
        self._desk.keep_calibration(read_calibration(plan, rollout, arguments, self._desk.wall()))
        self._desk.commit()
        return CommandAnswer(message=f"kept: `start` heeds what A/A rollouts of '{rollout}' showed")

    def _lint(self, arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """What forbids a plan, and what speaks against it."""
        try:
            plan = read_plan(commands.plan_in(arguments))
        except ConfigError as error:
            return [str(error)], []
        caution = self._advice(plan).caution if plan.mode == "automatic" else None
        return self._against(plan), [
            *cautions(plan, speculates=self._speculates(plan.canary)),
            *lone_hosts(plan, self._view.paths),
            *self._drafting_notes(plan.canary),
            *blind_spots(plan),
            *([] if caution is None else [caution]),
        ]

    def _speculates(self, path: str) -> bool:
        facts = self._view.paths.get(path)
        return facts is None or facts.is_speculative

    def _drafting_notes(self, path: str) -> list[str]:
        """A canary that does not draft is promoted as readily as the baseline's twin that it then is."""
        note = path_status(self._picture(), path)["drafting_note"] if path in self._view.paths else ""
        return [f"canary: {note}"] if note else []

    def _outlook(self, arguments: Mapping[str, Any]) -> Outlook:
        return outlook(read_plan(commands.plan_in(arguments)), self._rates.requests_per_second())

    def _history(self, arguments: Mapping[str, Any]) -> list[HistoryEntry]:
        wanted, limit = self._rollout_in(arguments), commands.count(arguments, "limit", 200)
        return self._journal.chronicle.history(wanted, limit=limit, windows=commands.flag(arguments, "windows"))

    def _record(self, arguments: Mapping[str, Any]) -> list[ExportedEvent]:
        wanted, limit = self._rollout_in(arguments), min(commands.count(arguments, "limit", 200), LONGEST_PAGE)
        return self._journal.chronicle.export(wanted, after=commands.count(arguments, "after", 0, 0), limit=limit)

    def _rollout_in(self, arguments: Mapping[str, Any]) -> str:
        """The rollout that was asked for, by default the latest."""
        ids = self._journal.chronicle.rollout_ids()
        wanted = commands.text(arguments, "rollout") or (ids[-1] if ids else "")
        if wanted not in ids:
            raise NotFound(f"no rollout '{wanted}'" if wanted else "no rollout was ever started", param="rollout")
        return wanted

    def _explain(self, arguments: Mapping[str, Any]) -> Explanation:
        rollout, name = self._desk.rollout, commands.text(arguments, "guardrail")
        if rollout is None:
            raise NotFound("there is no rollout to explain; start one")
        return explain(rollout, name)

    def _overview(self, arguments: Mapping[str, Any]) -> Overview:
        span, after = commands.choice(arguments, "span", GRAINS), commands.number(arguments, "after")
        after_event = commands.count(arguments, "after_event", 0, 0)
        return Overview(
            status=self._fleet_status(),
            events=self._journal.chronicle.recent(after=after_event, limit=RECENT_EVENTS),
            points=self._trend.points(span, after),
            every_seconds=GRAINS[span].seconds,
            kept=GRAINS[span].length,
        )

    def status(self) -> Mapping[str, Any]:
        """A `FleetStatus`."""
        return dict(self._fleet_status())

    def _fleet_status(self) -> FleetStatus:
        picture, wall = self._picture(), self._desk.wall()
        return fleet_status(picture, self._rollout_status(), wall=wall, journal=self._journal.place)

    def _rollout_status(self) -> RolloutStatus | None:
        rollout, dates = self._desk.rollout, self._desk.dates
        if rollout is None or dates is None:
            return None
        return rollout_status(rollout, self._desk.memory.window, self._desk.now(), dates)

    def _moved(self, message: str, warnings: Sequence[str] = ()) -> CommandAnswer:
        answer = CommandAnswer(message=message, warnings=list(warnings))
        rollout = self._rollout_status()
        if rollout is not None:
            answer["rollout"] = rollout
        return answer

    def metrics(self) -> bytes:
        """The whole fleet in Prometheus' text format."""
        failures = self._journal_failures
        return render(metrics_of(self._picture(), wall=self._desk.wall(), journal_failures=failures))

    def _picture(self) -> Picture:
        desk = self._desk
        split, rollout = desk.split, desk.rollout
        return Picture(self._model_name, desk.now(), split, desk.memory, self._view, self._rates, rollout, self._watch)
