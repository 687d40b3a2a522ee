"""AIPerf against the router: its counts are ours, its latencies by its own definition, its acceptance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.bench.definitions import aiperf
from tests.tools.conftest import ServedFleet
from tests.tools.installed import run_tool
from tests.tools.recorder import assert_agree, speculation_of

pytestmark = pytest.mark.tools

REQUESTS, TOKENS = 8, 24


async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path) -> None:
    await run_tool(
        *("aiperf", "aiperf", "profile", "--model", "tiny", "--url", speculative.url, "--endpoint-type", "chat"),
        *("--streaming", "--use-server-token-count", "--tokenizer", str(speculative.folder)),
        *("--isl", "32", "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--concurrency", "2", "--request-count", str(REQUESTS), "--workers-max", "1", "--record-processors", "1"),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(tmp_path / "out")),
        folder=tmp_path,
    )
    (exported,) = (tmp_path / "out").rglob("profile_export_aiperf.json")
    result = json.loads(exported.read_text())
    answers = await speculative.recorder.finished()
    assert len(answers) == REQUESTS
    assert result["request_count"]["avg"] == REQUESTS
    assert not (result.get("error_request_count") or {}).get("avg")
    assert result["total_osl"]["avg"] == sum(answer.served.tokens for answer in answers) == REQUESTS * TOKENS
    figures = aiperf([answer.served for answer in answers])
    assert_agree({name: (result[name]["avg"], result[name]["std"]) for name in figures}, figures)
    ours = speculation_of(answers)
    assert ours["num_draft_tokens"] > 0
    assert result["total_spec_decode_steps"]["avg"] == ours["num_spec_steps"]
    assert result["total_draft_tokens"]["avg"] == ours["num_draft_tokens"]
    assert result["total_accepted_draft_tokens"]["avg"] == ours["num_accepted_draft_tokens"]
