"""Do load tools say the same of the same load? `fleet load` and three others, in turns, against one router."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from deploy.bench import definitions
from deploy.bench.direct_fleet import DirectFleet, listening
from deploy.bench.document import present
from deploy.bench.load import drive
from deploy.bench.load_plan import LoadPlan
from deploy.bench.other_tools import AIPERF, GUIDELLM, VLLM_BENCH, LoadTool, ToolLoad
from deploy.bench.prompts import load_prompts
from deploy.bench.recorder import Recorder
from deploy.bench.stand_in import StandIn
from deploy.bench.tool_process import run_tool
from fleet.config import ModelConfig
from fleet.tokenizer import Tokenizer
from replicas.model_store import resolve_model
from router.intake import ServedModel

ROUTE = "/v1/chat/completions"
PACES = {"a token every 20 ms": (0.020, 1), "3 tokens every 30 ms": (0.030, 3)}
"""What the stand-in for a worker does: seconds between two steps, tokens in each."""
OURS = "fleet load"
TOOLS: dict[str, LoadTool] = {"vllm bench serve": VLLM_BENCH, "GuideLLM": GUIDELLM, "AIPerf": AIPERF}
MARKS = "bench-tools"
PROMPT_TOKENS = 32
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run of one tool: its means, and what the router's own words about the same requests make of them, in ms."""

    pace: str
    tool: str
    theirs: Mapping[str, float]
    expected: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Size:
    """How much each tool asks."""

    requests: int
    concurrency: int
    output_tokens: int


async def measure(size: Size, repetitions: int) -> list[Comparison]:
    """Every tool at every pace, A B C D A B C D. Raises `FleetError` where one is missing or fails."""
    folder = await asyncio.to_thread(resolve_model, ModelConfig(), lambda line: None)
    found = []
    for pace, (step_seconds, tokens_per_step) in PACES.items():
        async with _fleet(folder, StandIn(step_seconds, tokens_per_step)) as (url, recorder):
            for _ in range(repetitions):
                found.append(_told(await _by_us(pace, url, recorder, size)))
                for tool in TOOLS:
                    found.append(_told(await _by(tool, pace, url, recorder, size, folder)))
    return found


def _told(one: Comparison) -> Comparison:
    sys.stderr.write(f"{one.pace}: {one.tool} is done\n")
    return one


@asynccontextmanager
async def _fleet(folder: Path, worker: StandIn) -> AsyncIterator[tuple[str, Recorder]]:
    async with AsyncExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-"))
        stack.push_async_callback(worker.close)
        fleet = DirectFleet(
            tokenizer=Tokenizer.load(folder),
            model=ServedModel("stand-in", str(folder), CONTEXT, created=0),
            addresses={"stand-in": await worker.start()},
            stable="stand-in",
            journal=Path(state) / "journal.sqlite3",
        )
        recorder = Recorder(await stack.enter_async_context(fleet.app()))
        yield await stack.enter_async_context(listening(recorder)), recorder


async def _by_us(pace: str, url: str, recorder: Recorder, size: Size) -> Comparison:
    prompts = tuple(prompt for prompt in load_prompts() if len(prompt.turns) == 1)
    plan = LoadPlan(url, prompts, concurrency=size.concurrency, requests=size.requests, max_tokens=size.output_tokens)
    records = (await drive(plan)).records
    means = {
        "TTFT": fmean(record.ttft * 1000 for record in records if record.ttft is not None),
        "TPOT": fmean(record.tpot * 1000 for record in records if record.tpot is not None),
        "request": fmean(record.e2e * 1000 for record in records if record.e2e is not None),
    }
    return Comparison(pace, OURS, means, definitions.fleet_load(await _last(recorder, size)))


async def _by(tool: str, pace: str, url: str, recorder: Recorder, size: Size, folder: Path) -> Comparison:
    how = TOOLS[tool]
    with tempfile.TemporaryDirectory(prefix="fleet-") as results:
        where = Path(results)
        load = ToolLoad(
            url, "stand-in", folder, size.requests, size.concurrency, PROMPT_TOKENS, size.output_tokens, where
        )
        await run_tool(how.environment, *how.command(load, ROUTE), folder=where)
        figures = how.latencies(how.read(where))
    means = {name: figure.mean for name, figure in figures.items()}
    return Comparison(pace, tool, means, how.expected(await _last(recorder, size)))


async def _last(recorder: Recorder, size: Size) -> list[definitions.Served]:
    """The run's own requests; what some tools ask before them, to see whether anyone answers, is left out."""
    return [answer.served for answer in (await recorder.finished())[-size.requests :]]


HEAD = """| pace | tool | figure | tool, ms | router, ms | ratio |
|---|---|---|--:|--:|--:|"""


def render(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table: a row for each pace, tool and figure, with the smallest and largest of the repetitions."""
    rows = [HEAD]
    runs: dict[tuple[str, str], list[Comparison]] = {}
    for one in comparisons:
        runs.setdefault((one.pace, one.tool), []).append(one)
    for (pace, tool), same in runs.items():
        for name in same[0].theirs:
            theirs, expected = [one.theirs[name] for one in same], [one.expected[name] for one in same]
            cells = (pace, tool, name, _span(theirs), _span(expected), f"{fmean(theirs) / fmean(expected):.3f}")
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _span(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f} – {max(values):.1f})"


def main(
    requests: Annotated[int, typer.Option(min=1, help="Of each tool, in each run.")] = 40,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests open at once.")] = 4,
    output_tokens: Annotated[int, typer.Option(min=2, help="Length of every answer.")] = 64,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of every tool at every pace.")] = 3,
    into: Annotated[Path | None, typer.Option(help="A document with the marks, such as docs/benchmarks.md.")] = None,
) -> None:
    """Compare what load tools say of the same load."""
    size = Size(requests, concurrency, output_tokens)
    present(lambda: [render(asyncio.run(measure(size, repetitions)))], into, MARKS)


if __name__ == "__main__":
    typer.run(main)
