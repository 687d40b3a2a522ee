"""GuideLLM against the router: its counts are ours, its latencies by its own definition, our metrics word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.bench.definitions import guidellm
from tests.tools.conftest import ServedFleet
from tests.tools.installed import run_tool
from tests.tools.recorder import assert_agree

pytestmark = pytest.mark.tools

REQUESTS, TOKENS = 8, 24


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path, route: str) -> None:
    await run_tool(
        *("guidellm", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={speculative.url},request_format={route}"),
        *("--tokenizer", f"kind=huggingface_auto,model={speculative.folder}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--output", f"kind=json,path={tmp_path / 'result.json'}"),
        folder=tmp_path,
    )
    (benchmark,) = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    answers = await speculative.recorder.finished()
    assert {answer.route for answer in answers} == {route}
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    requests = benchmark["requests"]["successful"]
    assert sum(request["output_tokens"] for request in requests) == REQUESTS * TOKENS
    ours = {answer.metrics["fleet"]["seed"]: answer for answer in answers if answer.metrics}
    told = [ours[request["response_metrics"]["fleet"]["seed"]] for request in requests]
    assert [request["response_metrics"] for request in requests] == [answer.metrics for answer in told]
    figures = guidellm([answer.served for answer in told])
    summaries = {name: benchmark["metrics"][name]["successful"] for name in figures}
    assert_agree({name: (each["mean"], each["std_dev"]) for name, each in summaries.items()}, figures)
