"""Whatever head drafts, however: the answer is the one without any, to the token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from fleet.clock import SystemClock
from fleet.config import SpeculativeConfig
from fleet.generation import GenerationRequest, Round
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.sampling import Sampler
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.loading import PublishedHead
from tests.replicas.engine.requests import mixed_requests
from tests.replicas.engine.rig import Result, Rig, tiny_tokenizer
from tests.replicas.heads import checkpoints
from tests.tiny_models import SIZES, tiny_model_folder

FEW = (20, 30, 40)
"""A bias towards few tokens makes even untrained heads agree with the target now and then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 60}
    return tiny_model_folder(tmp_path_factory.mktemp("target") / "model", LlamaConfig(**sizes))


def biased(each: GenerationRequest) -> GenerationRequest:
    bias = tuple((token_id, 12.0) for token_id in FEW)
    return replace(each, sampling=replace(each.sampling, logit_bias=(*each.sampling.logit_bias, *bias)))


REQUESTS = [biased(each) for each in mixed_requests() if each.sampling.max_tokens <= 20]


def load(folder: Path, taps: tuple[int, ...] = (), kv_tokens: int = 600) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=kv_tokens, taps=taps)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Result]:
    return Rig(load(folder)).run(*REQUESTS)


HEADS: dict[str, Callable[[], checkpoints.Files]] = {
    "eagle": checkpoints.eagle_vicuna,
    "eagle, cut": lambda: checkpoints.eagle_cut(draft_ids=(*FEW, 7, 11, 50)),
    "eagle3": checkpoints.eagle3,
    "medusa": checkpoints.medusa,
}


def drafting(name: str, tree: object, **changes: str) -> SpeculativeConfig:
    """With a head of HEADS."""
    values = {"method": name.partition(",")[0], "model": "head", "num_speculative_tokens": 3, "tree": tree}
    return SpeculativeConfig.model_validate({**values, "adaptive": False, **changes})


def run_with(config: SpeculativeConfig, files: checkpoints.Files, folder: Path, kv_tokens: int, head_at: Path) -> Rig:
    head = PublishedHead(config, read_checkpoint(files.write(head_at)))
    model = load(folder, head.taps(8), kv_tokens)
    sampler = Sampler(60, tiny_tokenizer().eos_token_ids)
    proposer, _ = head.on(model, "tiny-target", sampler, SystemClock())
    rig = Rig(model, proposer=proposer, reader=proposer, must_answer=False, max_num_batched_tokens=64)
    rig.run(*REQUESTS)
    return rig


def rounds_of(rig: Rig) -> list[Round]:
    return [chunk.round for result in rig.results.values() for chunk in result.chunks if chunk.round]


@pytest.mark.parametrize("tree", [None, [[0], [2], [0, 0], [0, 1], [2, 1]]], ids=["chain", "tree"])
@pytest.mark.parametrize("method", sorted(HEADS))
def test_the_rejection_rule_changes_no_greedy_answer(
    method: str, tree: list[list[int]] | None, folder: Path, expected: dict[str, Result], tmp_path: Path
) -> None:
    config = drafting(method, tree, acceptance="rejection")
    rig = run_with(config, HEADS[method](), folder, 600, tmp_path)
    for each in REQUESTS:
        result = rig.results[each.request_id]
        assert result.has_ended
        assert result.failure is None
        if each.sampling.is_greedy:
            assert result.answer() == expected[each.request_id].answer()
        if each.sampling.logprobs is not None:
            assert [entry.token_id for entry in result.logprobs] == result.token_ids
    assert sum(round_.accepted for round_ in rounds_of(rig)) > 0.1 * len(rounds_of(rig))


@pytest.mark.parametrize("kv_tokens", [pytest.param(600, marks=pytest.mark.slow), 150], ids=["roomy", "preempting"])
@pytest.mark.parametrize("tree", [None, (3, 2, 1)], ids=["chain", "tree"])
@pytest.mark.parametrize("method", sorted(HEADS))
def test_every_feature_gives_the_same_answer_with_every_head(
    method: str,
    tree: tuple[int, ...] | None,
    kv_tokens: int,
    folder: Path,
    expected: dict[str, Result],
    tmp_path: Path,
) -> None:
    config = drafting(method, tree)
    rig = run_with(config, HEADS[method](), folder, kv_tokens, tmp_path)
    results, rounds = rig.results, rounds_of(rig)
    for each in REQUESTS:
        assert results[each.request_id].answer() == expected[each.request_id].answer(), each.request_id
        mine, theirs = results[each.request_id].logprobs, expected[each.request_id].logprobs
        assert [entry.token_id for entry in mine] == [entry.token_id for entry in theirs]
    assert sum(round_.drafted for round_ in rounds) > len(rounds)
    assert sum(round_.accepted for round_ in rounds) > 0.1 * len(rounds)
    assert (rig.engine.stats.preemptions > 0) == (kv_tokens == 150)
