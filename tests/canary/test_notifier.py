"""Notices reach a real HTTP server, whatever happens to it, to the network or to the controller in between."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import tenacity
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from canary import notifier
from canary.notices import Notice
from canary.notifier import Notifier
from fleet.config import ControllerConfig, WebhookConfig
from fleet.errors import ConfigError, Unavailable
from fleet.notices import NoticeKind
from tests.canary.world import World, plan


@dataclass
class Receiver:
    """A webhook's other end; `answers` are given first, then 200."""

    port: int = 0
    answers: list[int | None] = field(default_factory=list)
    """None hangs."""
    taken: list[dict] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0

    async def take(self, request: Request) -> Response:
        self.asked += 1
        body = json.loads(await request.body())
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            await asyncio.sleep(3600)
        elif answer == 200:
            self.taken.append(body)
            self.headers.append(dict(request.headers))
        return Response(status_code=answer or 200)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[Receiver]:
    app = Starlette(routes=[Route("/hook", receiver.take, methods=["POST"])])
    config = uvicorn.Config(
        app, port=receiver.port, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    receiver.port = socket.getsockname()[1]
    serving = asyncio.create_task(server.serve([socket]))
    await until(lambda: server.started, "listening")
    try:
        yield receiver
    finally:
        server.should_exit = True
        await serving
        socket.close()


@dataclass
class MemoryOutbox:
    """An outbox without a journal."""

    written: list[tuple[int, Notice]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    is_away: bool = False

    def add(self, *kinds: NoticeKind) -> None:
        for kind in kinds:
            number = self.last_notice + 5
            self.written.append((number, notice(kind, f"event {number} <&>")))

    @property
    def last_notice(self) -> int:
        return self.written[-1][0] if self.written else 0

    def notices(self, after: int, limit: int) -> list[tuple[int, Notice]]:
        if self.is_away:
            raise Unavailable("gone")
        return [item for item in self.written if item[0] > after][-limit:]

    def told(self, webhook: str) -> int:
        return self.ends.get(webhook, 0)

    def note_told(self, webhook: str, number: int) -> None:
        self.ends[webhook] = number

    def note_failure(self, webhook: str) -> None:
        self.failures[webhook] += 1


def notice(kind: NoticeKind, summary: str) -> Notice:
    return Notice(kind, 1.7e9 + 0.25, "speculative-1", 2, "baseline", "speculative", "baking", 1, 3, 5.0, summary)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(tenacity, "wait_exponential_jitter", lambda **_: tenacity.wait_fixed(0.01))


async def until(is_so: Callable[[], bool], message: str) -> None:
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"never: {message}")


@asynccontextmanager
async def running(webhooks: dict[str, WebhookConfig], outbox: MemoryOutbox) -> AsyncIterator[None]:
    task = asyncio.create_task(Notifier(webhooks, outbox).run())
    try:
        yield
        assert not task.done() or not webhooks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_notices_arrive_in_order_once_and_only_those_asked_for():
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.STEP, NoticeKind.HOLD, NoticeKind.ROLLBACK)
    async with listening(Receiver()) as receiver:
        hook = WebhookConfig(url=receiver.url, on=(NoticeKind.STEP, NoticeKind.ROLLBACK))
        async with running({"ops": hook}, outbox):
            await until(lambda: outbox.ends == {"ops": 15}, "all told")
            outbox.add(NoticeKind.STEP)
            await until(lambda: outbox.ends == {"ops": 20}, "the later one too")
        assert [(body["id"], body["kind"]) for body in receiver.taken] == [(5, "step"), (15, "rollback"), (20, "step")]
        assert receiver.taken[0]["summary"] == "event 5 <&>"
        assert receiver.asked == 3


async def test_what_a_webhook_cannot_take_now_is_tried_again_until_it_can():
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.STEP, NoticeKind.HOLD)
    async with listening(Receiver(answers=[503, 500, 429, 408])) as receiver:
        async with running({"ops": WebhookConfig(url=receiver.url)}, outbox):
            await until(lambda: outbox.ends == {"ops": 10}, "both told")
        assert [body["id"] for body in receiver.taken] == [5, 10]
        assert receiver.asked == 6
        assert outbox.failures == {"ops": 4}


async def test_a_webhook_that_is_down_is_told_when_it_is_back(caplog):
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.STEP)
    async with listening(Receiver()) as receiver:
        pass
    async with running({"ops": WebhookConfig(url=receiver.url)}, outbox):
        await until(lambda: "webhook ops, try 3: ConnectError" in caplog.text, "tries")
        assert outbox.ends == {}
        async with listening(receiver):
            await until(lambda: outbox.ends == {"ops": 5}, "told")
    assert len(receiver.taken) == 1


async def test_a_refusal_for_good_is_passed_over_and_its_secret_url_not_logged(caplog):
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.STEP, NoticeKind.HOLD)
    async with listening(Receiver(answers=[400])) as receiver:
        async with running({"ops": WebhookConfig(url=receiver.url + "?token=geheim")}, outbox):
            await until(lambda: outbox.ends == {"ops": 10}, "went on")
        assert [body["id"] for body in receiver.taken] == [10]
    assert outbox.failures == {"ops": 1}
    ours = [record.getMessage() for record in caplog.records if record.name == "canary.notifier"]
    assert ours == ["webhook ops does not take a notice, which is passed over: it answered 400"]


async def test_one_that_hangs_delays_no_other():
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.STEP)
    async with listening(Receiver(answers=[None])) as slow, listening(Receiver()) as quick:
        hooks = {"slow": WebhookConfig(url=slow.url, timeout_s=60), "quick": WebhookConfig(url=quick.url)}
        async with running(hooks, outbox):
            await until(lambda: outbox.ends == {"quick": 5}, "quick told")
            await until(lambda: slow.asked == 1, "slow asked")


async def test_after_a_long_absence_only_the_newest_are_told(monkeypatch):
    monkeypatch.setattr(notifier, "QUEUE_NOTICES", 3)
    outbox = MemoryOutbox()
    outbox.add(*[NoticeKind.STEP] * 9)
    async with listening(Receiver()) as receiver:
        async with running({"ops": WebhookConfig(url=receiver.url)}, outbox):
            await until(lambda: outbox.ends == {"ops": 45}, "told")
        assert [body["id"] for body in receiver.taken] == [35, 40, 45]


async def test_a_journal_that_is_away_is_asked_again(caplog):
    outbox = MemoryOutbox(is_away=True)
    outbox.add(NoticeKind.STEP)
    async with listening(Receiver()) as receiver, running({"ops": WebhookConfig(url=receiver.url)}, outbox):
        await until(lambda: "webhook ops has to wait: gone" in caplog.text, "waits")
        outbox.is_away = False
        await until(lambda: len(receiver.taken) == 1, "told")


async def test_slack_and_grafana_get_what_they_understand():
    outbox = MemoryOutbox()
    outbox.add(NoticeKind.ROLLBACK)
    async with listening(Receiver()) as slack, listening(Receiver()) as grafana:
        hooks = {
            "slack": WebhookConfig(url=slack.url, format="slack"),
            "grafana": WebhookConfig(url=grafana.url, format="grafana", headers={"Authorization": "Bearer t"}),
        }
        async with running(hooks, outbox):
            await until(lambda: len(outbox.ends) == 2, "both told")
        (text,), (annotation,) = slack.taken, grafana.taken
        assert set(text) == {"text"}
        assert "*speculative-1* rollback" in text["text"]
        assert "event 5 &lt;&amp;&gt;" in text["text"]
        assert annotation["time"] == 1_700_000_000_250
        assert annotation["tags"] == ["fleet", "rollback", "speculative-1", "speculative"]
        assert annotation["text"] == "speculative-1: event 5 <&>"
        assert grafana.headers[0]["authorization"] == "Bearer t"


@pytest.mark.parametrize("url", ["ftp://host/x", "host/x", "http://", "http://[::1", "http://host:port/"])
def test_a_url_to_which_nothing_can_be_sent_is_refused_at_the_start(url):
    with pytest.raises(ConfigError, match=r"controller.webhooks.ops"):
        Notifier({"ops": WebhookConfig(url=url)}, MemoryOutbox())


def test_a_secret_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="environment variable NO_SUCH_URL is not set"):
        Notifier({"ops": WebhookConfig(url="env:NO_SUCH_URL")}, MemoryOutbox())


def open_with(world: World, receiver: Receiver) -> None:
    world.controller.close()
    world.webhooks = {"ops": WebhookConfig(url=receiver.url)}
    world.controller = world.open()


async def run_controller(world: World, seconds: float) -> None:
    """The world goes on while the controller's own loop sends."""
    task = asyncio.create_task(world.controller._notifier.run())
    for _ in range(round(seconds)):
        world.run(1)
        await asyncio.sleep(0)
    await until(lambda: world.controller._desk.told("ops") >= world.controller._desk.last_notice, "told")
    world.controller.tick()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_rollout_tells_its_steps_holds_and_end_and_a_restart_repeats_nothing(tmp_path):
    world = World(tmp_path)
    world.run(2)
    world.command("start", plan=plan())
    world.run(4)
    async with listening(Receiver()) as receiver:
        open_with(world, receiver)  # a webhook that is new is not told what was before
        await run_controller(world, 4)
        assert receiver.taken == []
        world.requests_per_second = 0
        await run_controller(world, 6)
        open_with(world, receiver)
        world.requests_per_second = 8
        await run_controller(world, 6)
        world.behaviours["speculative"].itl_seconds = 0.09
        await run_controller(world, 60)
        open_with(world, receiver)
        await run_controller(world, 2)
        told = [(body["kind"], body["weight"]) for body in receiver.taken]
        assert told == [("hold", 5.0), ("step", 5.0), ("step", 50.0), ("rollback", 0.0)]
        assert receiver.taken[-1]["summary"].endswith("weight 50 % -> 0 %")
        numbers = [body["id"] for body in receiver.taken]
        entries = {event["id"]: event for event in world.command("history")["events"]}
        assert [entries[number]["summary"] for number in numbers] == [body["summary"] for body in receiver.taken]
    world.controller.close()


async def test_a_controller_that_dies_before_it_noted_the_delivery_tells_again_never_not_at_all(tmp_path):
    world = World(tmp_path)
    async with listening(Receiver()) as receiver:
        open_with(world, receiver)
        world.run(2)
        world.command("start", plan=plan())
        world.run(2)
        world.restart()  # dead before anything was sent
        task = asyncio.create_task(world.controller._notifier.run())
        await until(lambda: len(receiver.taken) == 1, "told by the successor")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        world.restart()  # dead before it was noted
        await run_controller(world, 1)
        assert [body["id"] for body in receiver.taken] == [receiver.taken[0]["id"]] * 2
        world.restart()
        await run_controller(world, 1)
        assert len(receiver.taken) == 2
    world.controller.close()


async def test_tries_that_failed_are_counted_and_the_count_outlives_the_controller(tmp_path):
    world = World(tmp_path)
    async with listening(Receiver(answers=[503, 503, 400])) as receiver:
        open_with(world, receiver)
        world.run(2)
        assert 'fleet_webhook_failures_total{webhook="ops"} 0.0' in world.controller.metrics().decode()
        world.command("start", plan=plan())
        await run_controller(world, 1)
        world.restart()
    assert 'fleet_webhook_failures_total{webhook="ops"} 3.0' in world.controller.metrics().decode()
    world.controller.close()


def test_the_config_names_a_kind_that_does_not_exist():
    with pytest.raises(ValueError, match="'step', 'hold', 'promotion', 'rollback' or 'abort'"):
        ControllerConfig.model_validate({"webhooks": {"ops": {"url": "http://x", "on": ["lunch"]}}})
