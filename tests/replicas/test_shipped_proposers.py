"""The shipped proposers on the shipped model, on real prompts: whole answers in float32 are the baseline's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pytest
import torch

from deploy.bench.prompts import Prompt, load_prompts
from fleet.config import EngineConfig, ModelConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.features import FeatureReader
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Proposer
from replicas.speculation.suffix import SuffixLimits, SuffixProposer
from replicas.target_model import TargetModel, load_target
from tests.replicas.shipped import LONGEST_DRAFT, Answers, ShippedHeads, answer, quiet, shipped_draft

pytestmark = [pytest.mark.model, pytest.mark.patient]

CATEGORIES = ("chat", "code", "summarization")
OF_EACH = 4
ANSWER_TOKENS = 32
ENGINE = EngineConfig(kv_cache_tokens=512, max_num_seqs=8, max_num_batched_tokens=128, device="cpu")
"""Too little room for eight of the longer ones: some wait, some lose their place and go on later."""
SHAPES = {"chain": (1,) * LONGEST_DRAFT, "tree": (3, 2, 1)}
TREES = {f"{method}/{name}": shape for method in ("eagle", "eagle3", "medusa") for name, shape in SHAPES.items()}
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.95},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.05},
    {"logprobs": 2},
    {"temperature": 0.6, "presence_penalty": 0.5, "min_tokens": 20},
)


@dataclass(frozen=True)
class Stage:
    """One loaded target, what it is asked, and what it answers alone."""

    target: TargetModel
    requests: list[GenerationRequest]
    expected: Answers
    proposers: dict[str, tuple[Proposer, FeatureReader | None]]


def real_prompts() -> list[Prompt]:
    """The shortest of each category, the categories in turns."""
    shortest = [
        sorted((each for each in load_prompts() if each.category == category), key=lambda each: len(each.turns[0]))
        for category in CATEGORIES
    ]
    return list(chain.from_iterable(zip(*(each[:OF_EACH] for each in shortest), strict=True)))


def ask(target: TargetModel) -> list[GenerationRequest]:
    """Each prompt as a chat client would send it; greedy and sampled in turns."""
    requests = []
    for number, prompt in enumerate(real_prompts()):
        plain = SamplingParams(seed=number, max_tokens=ANSWER_TOKENS - number % 3, temperature=0.0)
        sampling = replace(plain, **SAMPLINGS[number % len(SAMPLINGS)])
        tokens = target.tokenizer.render_chat([{"role": "user", "content": prompt.turns[0]}])
        requests.append(GenerationRequest(prompt.id, tuple(tokens), sampling))
    return requests


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    heads = ShippedHeads(TREES)
    target = load_target(ModelConfig(dtype="float32"), ENGINE, quiet, heads)
    requests = ask(target)
    proposers: dict[str, tuple[Proposer, FeatureReader | None]] = {
        "ngram": (NgramProposer(2, 4), None),
        "suffix": (SuffixProposer(SuffixLimits(24, 1.0, 0.1), 100), None),
        "draft_model": (shipped_draft(target, "float32"), None),
        **{name: (proposer, reader) for name, proposer, reader in heads.on(target)},
    }
    yield Stage(target, requests, answer(target, ENGINE, requests, None), proposers)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model", *TREES])
def test_whole_answers_to_real_prompts_are_the_baselines(name: str, stage: Stage) -> None:
    proposer, reader = stage.proposers[name]
    answers = answer(stage.target, ENGINE, stage.requests, proposer, reader)
    assert len(answers.results) == len(CATEGORIES) * OF_EACH
    for request_id, expected in stage.expected.results.items():
        assert answers.results[request_id].answer() == expected.answer(), request_id
    tokens = sum(len(result.token_ids) for result in answers.results.values())
    assert stage.expected.preemptions > 0
    assert tokens > len(answers.results) * ANSWER_TOKENS / 4
    assert answers.accepted > 0
