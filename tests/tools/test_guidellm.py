"""GuideLLM against the router: counts, latencies by its own definition, and our own metrics word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.other_tools import GUIDELLM, ToolLoad
from deploy.bench.tool_process import RUN_SECONDS, run_tool
from tests.tools.agreement import assert_agree
from tests.tools.conftest import ServedFleet

pytestmark = [pytest.mark.tools, pytest.mark.timeout(2 * RUN_SECONDS)]

REQUESTS, CONCURRENCY, TOKENS = 8, 2, 24


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path, route: str) -> None:
    load = ToolLoad(speculative.url, "tiny", speculative.folder, REQUESTS, CONCURRENCY, 32, TOKENS, tmp_path)
    await run_tool(GUIDELLM.environment, *GUIDELLM.command(load, route), folder=tmp_path)
    run = GUIDELLM.read(tmp_path)
    answers = await speculative.recorder.finished()
    assert {answer.route for answer in answers} == {route}
    totals = run["metrics"]["request_totals"]
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    # On a busy machine it may stop listening before the last of the requests that it has sent is answered.
    assert REQUESTS - CONCURRENCY < totals["successful"] <= len(answers) == REQUESTS
    requests = run["requests"]["successful"]
    assert [request["output_tokens"] for request in requests] == [TOKENS] * totals["successful"]
    by_seed = {answer.metrics["fleet"]["seed"]: answer for answer in answers if answer.metrics}
    told = [by_seed[request["response_metrics"]["fleet"]["seed"]] for request in requests]
    assert [request["response_metrics"] for request in requests] == [answer.metrics for answer in told]
    assert_agree(GUIDELLM.latencies(run), GUIDELLM.expected([answer.served for answer in told]))
