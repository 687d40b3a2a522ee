"""`vllm bench serve` against the router: its counts are ours, its latencies by its own definition, its acceptance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.bench.definitions import vllm_bench
from tests.tools.conftest import ServedFleet
from tests.tools.installed import run_tool
from tests.tools.recorder import assert_agree, speculation_of

pytestmark = pytest.mark.tools

REQUESTS, TOKENS = 8, 24


@pytest.mark.parametrize(("backend", "route"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
async def test_its_figures_are_ours(speculative: ServedFleet, tmp_path: Path, backend: str, route: str) -> None:
    await run_tool(
        *("vllm_bench", "vllm", "bench", "serve"),
        *("--backend", backend, "--base-url", speculative.url, "--endpoint", route),
        *("--dataset-name", "random", "--random-input-len", "32", "--random-output-len", str(TOKENS)),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", "2", "--ignore-eos", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
        folder=tmp_path,
    )
    result = json.loads((tmp_path / "result.json").read_text())
    answers = (await speculative.recorder.finished())[-REQUESTS:]
    assert len(answers) == REQUESTS
    assert {answer.route for answer in answers} == {route}
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["total_output_tokens"] == sum(answer.served.tokens for answer in answers) == REQUESTS * TOKENS
    names = ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms")
    theirs = {name: (result[f"mean_{name}"], result[f"std_{name}"]) for name in names}
    assert_agree(theirs, vllm_bench([answer.served for answer in answers]))
    ours = speculation_of(answers)
    assert ours["num_draft_tokens"] > 0
    assert result["spec_decode_num_drafts"] == ours["num_spec_steps"]
    assert result["spec_decode_draft_tokens"] == ours["num_draft_tokens"]
    assert result["spec_decode_accepted_tokens"] == ours["num_accepted_draft_tokens"]
