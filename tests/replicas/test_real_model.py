"""The shipped model, whole: sensible text, and the same with and without speculation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.generation import FinishReason, GenerationRequest, SamplingParams
from replicas import target_worker
from replicas.target_model import load_target
from replicas.target_worker import WorkerSettings
from tests.replicas.worker_router import Router, answers, started

MODEL = ModelConfig(dtype="float32")
ENGINE = EngineConfig(kv_cache_tokens=4096)
GREEDY = SamplingParams(seed=0, max_tokens=48, temperature=0.0)


@pytest.mark.model
async def test_text_is_sensible_and_prompt_lookup_changes_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target(MODEL, ENGINE, lambda line: None)
    monkeypatch.setattr(target_worker, "load_target", lambda *_: target)

    def ask(name: str, question: str, sampling: SamplingParams = GREEDY) -> GenerationRequest:
        prompt = target.tokenizer.render_chat([{"role": "user", "content": question}])
        return GenerationRequest(name, tuple(prompt), sampling)

    copying = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."
    requests = [
        ask("capital", "What is the capital of France? Answer in one sentence."),
        ask("copy", copying),
        ask("sampled", "Tell me about the sea.", replace(GREEDY, seed=7, temperature=0.8, top_p=0.95)),
    ]
    ngram = SpeculativeConfig(method="ngram", adaptive=False)
    baseline, speculative = (
        WorkerSettings("baseline", MODEL, ENGINE),
        WorkerSettings("speculative", MODEL, ENGINE, ngram),
    )
    async with (
        started(baseline) as plain,
        started(speculative) as drafted,
        Router(plain) as without,
        Router(drafted) as speculating,
    ):
        expected = answers(await without.run(*requests))
        assert answers(await speculating.run(*requests)) == expected
    rounds = [chunk.round for chunk in speculating.results["copy"].chunks if chunk.round]
    assert sum(round_.accepted for round_ in rounds) > 0
    capital = without.results["capital"]
    assert "Paris" in capital.text
    assert capital.finish == FinishReason.STOP
    assert "quick brown fox" in without.results["copy"].text
