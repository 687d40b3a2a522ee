"""`vllm bench serve` against the router: counts, latencies by its own definition, acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.other_tools import VLLM_BENCH, ToolLoad
from deploy.bench.tool_process import RUN_SECONDS, run_tool
from tests.tools.agreement import assert_agree, speculation_of
from tests.tools.conftest import ServedFleet

pytestmark = [pytest.mark.tools, pytest.mark.timeout(2 * RUN_SECONDS)]

REQUESTS, TOKENS = 8, 24


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path, route: str) -> None:
    load = ToolLoad(speculative.url, "tiny", speculative.folder, REQUESTS, 2, 32, TOKENS, tmp_path)
    await run_tool(VLLM_BENCH.environment, *VLLM_BENCH.command(load, route), folder=tmp_path)
    run = VLLM_BENCH.read(tmp_path)
    # Many versions first ask once whether the server answers at all.
    answers = (await speculative.recorder.finished())[-REQUESTS:]
    assert {answer.route for answer in answers} == {route}
    served = [answer.served for answer in answers]
    assert (run["completed"], run["failed"]) == (REQUESTS, 0)
    assert run["total_output_tokens"] == sum(one.tokens for one in served) == REQUESTS * TOKENS
    assert_agree(VLLM_BENCH.latencies(run), VLLM_BENCH.expected(served))
    ours = speculation_of(answers)
    assert ours["num_draft_tokens"] > 0
    assert run["spec_decode_num_drafts"] == ours["num_spec_steps"]
    assert run["spec_decode_draft_tokens"] == ours["num_draft_tokens"]
    assert run["spec_decode_accepted_tokens"] == ours["num_accepted_draft_tokens"]
