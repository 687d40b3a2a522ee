"""AIPerf against the router: counts, latencies by its own definition, acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.other_tools import AIPERF, ToolLoad
from deploy.bench.tool_process import RUN_SECONDS, run_tool
from tests.tools.agreement import assert_agree, speculation_of
from tests.tools.conftest import ServedFleet

pytestmark = [pytest.mark.tools, pytest.mark.timeout(2 * RUN_SECONDS)]

REQUESTS, TOKENS = 8, 24


async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path) -> None:
    load = ToolLoad(speculative.url, "tiny", speculative.folder, REQUESTS, 2, 32, TOKENS, tmp_path / "out")
    await run_tool(AIPERF.environment, *AIPERF.command(load, "/v1/chat/completions"), folder=tmp_path)
    run = AIPERF.read(load.results)
    answers = await speculative.recorder.finished()
    served = [answer.served for answer in answers]
    assert run["request_count"]["avg"] == len(served) == REQUESTS
    assert not (run.get("error_request_count") or {}).get("avg")
    assert run["total_osl"]["avg"] == sum(one.tokens for one in served) == REQUESTS * TOKENS
    assert_agree(AIPERF.latencies(run), AIPERF.expected(served))
    ours = speculation_of(answers)
    assert ours["num_draft_tokens"] > 0
    assert run["total_spec_decode_steps"]["avg"] == ours["num_spec_steps"]
    assert run["total_draft_tokens"]["avg"] == ours["num_draft_tokens"]
    assert run["total_accepted_draft_tokens"]["avg"] == ours["num_accepted_draft_tokens"]
