"""Drives an OpenAI-compatible endpoint with chat requests, closed or open loop, and collects what came back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.bench.asking import ApiClient, Question, Reply, open_http, served_model
from deploy.bench.load_plan import Conversation, LoadPlan, conversations
from deploy.bench.load_result import LoadResult, RequestRecord, failures_line, render, summarise
from deploy.bench.prompts import SHIPPED_PROMPTS, load_prompts
from deploy.connection import Url, address
from fleet.clock import Clock, SystemClock
from fleet.config import resolve_secret
from fleet.errors import ConfigError, FleetError
from fleet.traffic import Outcome


class NothingAnswered(FleetError):
    """Not one request of the run was answered to its end. `exit_code` is the command's."""

    exit_code = 1


async def drive(plan: LoadPlan, on_record: Callable[[RequestRecord], None] | None = None) -> LoadResult:
    """Carry the plan out against the server at `plan.url`.

    `on_record` hears of every request as it ends. Raises `ConfigError` where no server answers at all, or where it
    refuses the plan's path; requests that fail later are part of the result.
    """
    async with open_http(plan.url, plan.timeout_seconds) as http:
        return await LoadDriver(plan, http, SystemClock(), on_record).run()


class LoadDriver:
    """One run of one plan over an HTTP client that the caller owns."""

    def __init__(
        self,
        plan: LoadPlan,
        http: httpx.AsyncClient,
        clock: Clock,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self._plan = plan
        self._http = http
        self._clock = clock
        self._on_record = on_record
        self._records: list[RequestRecord] = []
        self._started = 0.0

    async def run(self) -> LoadResult:
        plan = self._plan
        model = plan.model or await served_model(self._http, plan.api_key)
        client = ApiClient(self._http, self._clock, model=model, path=plan.path, key=plan.api_key)
        if plan.path is not None:
            await _try_path(client, plan.path, self._clock)
        self._started = self._clock.monotonic()
        source = conversations(plan)
        async with asyncio.TaskGroup() as group:
            if plan.concurrency is None:
                await self._arrive(client, source, group)
            else:
                for _ in range(plan.concurrency):
                    group.create_task(self._work(client, source))
        elapsed = self._clock.monotonic() - self._started
        return LoadResult(tuple(self._records), elapsed)

    async def _work(self, client: ApiClient, source: Iterator[Conversation]) -> None:
        """Closed loop: hold one conversation after the other."""
        duration = self._plan.duration_seconds
        for conversation in source:
            now = self._clock.monotonic()
            if duration is not None and now - self._started >= duration:
                return
            await self._hold(client, conversation, now)

    async def _arrive(self, client: ApiClient, source: Iterator[Conversation], group: asyncio.TaskGroup) -> None:
        """Open loop: begin every conversation when it is due, however many are open."""
        for conversation in source:
            due = self._started + (conversation.due_seconds or 0.0)
            await asyncio.sleep(due - self._clock.monotonic())
            group.create_task(self._hold(client, conversation, due))

    async def _hold(self, client: ApiClient, conversation: Conversation, due: float) -> None:
        """Ask turn after turn; a turn that fails ends the conversation, as its answer is missing."""
        messages: list[dict[str, str]] = []
        for turn in range(conversation.turns):
            messages.append({"role": "user", "content": conversation.prompt.turns[turn]})
            reply = Reply(due)
            await client.ask(self._question(conversation, turn, messages), reply)
            record = RequestRecord.of(conversation, turn, reply)
            self._records.append(record)
            if self._on_record is not None:
                self._on_record(record)
            if record.outcome is not Outcome.DONE:
                return
            messages.append({"role": "assistant", "content": record.text})
            due = self._clock.monotonic()

    def _question(self, conversation: Conversation, turn: int, messages: list[dict[str, str]]) -> Question:
        return Question(
            messages=tuple(messages),
            max_tokens=self._plan.max_tokens,
            sampling={"temperature": self._plan.temperature},
            seed=conversation.seed + turn,
            user=conversation.user,
        )


async def _try_path(client: ApiClient, path: str, clock: Clock) -> None:
    """Ask for one token; ConfigError in the server's words where it refuses the path as it would every request."""
    reply = Reply(clock.monotonic())
    greeting = {"role": "user", "content": "Hello"}
    await client.ask(Question((greeting,), max_tokens=1, sampling={}, seed=0, user="load"), reply)
    if reply.status in (httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND):
        raise ConfigError(f"--path {path}: {reply.answer.error}")


def load_command(  # noqa: PLR0913 - one argument per option
    url: Url = None,
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: conversations held open. (Default 4.)")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: conversations begun per second (Poisson).")] = None,
    requests: Annotated[int | None, typer.Option(help="Stop after so many requests. (Default 200.)")] = None,
    duration: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    users: Annotated[int, typer.Option(help="Distinct x-session-id values.")] = 100,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    prompts: Annotated[Path, typer.Option(help="JSON lines: id or question_id, category, turns.")] = SHIPPED_PROMPTS,
    category: Annotated[list[str] | None, typer.Option(help="Only these categories; may be repeated.")] = None,
    model: Annotated[str | None, typer.Option(help="Name in the API. (Default: the one served.)")] = None,
    path: Annotated[str | None, typer.Option(help="Send everything to this path (x-fleet-path).")] = None,
    api_key: Annotated[str | None, typer.Option(help="The key, or 'env:NAME' or 'file:PATH'.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write every request as a JSON line.")] = None,
) -> None:
    """Send load from the shipped prompts and show latency, throughput and acceptance by path.

    Exit code 1 where not one request was answered.
    """
    chosen = tuple(prompt for prompt in load_prompts(prompts) if not category or prompt.category in category)
    plan = LoadPlan(
        url=address(url, None)[0],
        prompts=chosen,
        concurrency=4 if concurrency is None and rate is None else concurrency,
        rate_per_second=rate,
        requests=200 if requests is None and duration is None else requests,
        duration_seconds=duration,
        users=users,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        model=model,
        api_key=None if api_key is None else resolve_secret(api_key),
        path=path,
    )
    console = Console()
    result = _drive_with_progress(plan, console)
    summary = summarise(result)
    console.print(render(summary))
    if save is not None:
        save.write_text("".join(json.dumps(asdict(record)) + "\n" for record in result.records), encoding="utf-8")
    if summary.failed and summary.failed == summary.total.requests:
        raise NothingAnswered(failures_line(summary))
    if summary.failed:
        typer.echo(failures_line(summary), err=True)


def _drive_with_progress(plan: LoadPlan, console: Console) -> LoadResult:
    """Drive; Ctrl-C ends the run early and keeps what was collected."""
    records: list[RequestRecord] = []
    clock = SystemClock()
    started = clock.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("requests", total=plan.requests)

        def note(record: RequestRecord) -> None:
            records.append(record)
            progress.advance(task)

        try:
            return asyncio.run(drive(plan, note))
        except KeyboardInterrupt:
            return LoadResult(tuple(records), clock.monotonic() - started)
