"""Where arithmetic itself is bfloat16, speculative answers are the model's choices up to what rounding decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config import EngineConfig, ModelConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.model import load_model
from replicas.speculation.ngram import NgramProposer
from replicas.target_model import load_target
from tests.replicas import test_every_proposer as arms
from tests.replicas.bfloat16 import NearTies, assert_is_bfloat16, compute_in_bfloat16
from tests.replicas.engine.rig import Rig
from tests.replicas.shipped import Answers, ShippedHeads, answer, quiet, shipped_draft
from tests.tiny_models import tiny_model_folder

TOKENS = 12
GREEDY = SamplingParams(seed=0, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
REQUESTS = [
    GenerationRequest(str(number), tuple(3 + (7 * number + place * place) % 50 for place in range(6 + number)), GREEDY)
    for number in range(6)
]
ENGINE = EngineConfig(kv_cache_tokens=1024, max_num_seqs=4, max_num_batched_tokens=64, device="cpu")


@pytest.fixture(autouse=True)
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_bfloat16(monkeypatch)
    monkeypatch.setattr(arms, "load", _load)


def _load(
    folder: Path, *, taps: tuple[int, ...] = (), layers: int | None = None, kv_tokens: int = 600
) -> arms.DecoderModel:
    return load_model(folder, dtype="bfloat16", device="cpu", kv_tokens=kv_tokens, taps=taps, layers=layers)


@pytest.mark.parametrize("name", ["ngram", "layers", "eagle", "eagle-tree", "eagle3", "medusa-tree"])
def test_every_token_of_a_small_model_is_its_choice_or_within_a_near_tie_of_it(name: str, tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "target", arms.CONFIG)
    arm = arms.ARMS[name](folder, tmp_path / "draft")
    assert_is_bfloat16(arm.model)
    plain = Rig(_load(folder)).run(*REQUESTS)
    ties = NearTies(arm.model, [(each, plain[each.request_id].token_ids) for each in REQUESTS])
    rig = Rig(arm.model, proposer=arm.proposer, reader=arm.reader, must_answer=False, max_num_seqs=3)
    rig.run(*REQUESTS)
    for each in REQUESTS:
        assert ties.farthest(each, rig.results[each.request_id].token_ids) <= ties.most, each.request_id
    rounds = [chunk.round for result in rig.results.values() for chunk in result.chunks if chunk.round]
    assert sum(round_.drafted for round_ in rounds) > 0
    # The measure can fail: the second half of another answer is far off.
    mixed = [*plain["0"].token_ids[: TOKENS // 2], *plain["1"].token_ids[TOKENS // 2 :]]
    assert ties.farthest(REQUESTS[0], mixed) > ties.most


def test_rounding_is_seen_in_the_small_model(tmp_path: Path) -> None:
    """Otherwise the test above would hold in any arithmetic."""
    model = _load(tiny_model_folder(tmp_path / "target", arms.CONFIG))
    plain = Rig(model).run(*REQUESTS)
    assert NearTies(model, [(each, plain[each.request_id].token_ids) for each in REQUESTS]).noise > 0


@pytest.mark.model
@pytest.mark.patient
def test_every_token_of_the_shipped_model_is_its_choice_or_within_a_near_tie_of_it() -> None:
    heads = ShippedHeads({"eagle": (1, 1, 1), "eagle3": (2, 2, 1), "medusa": (3, 2, 1)})
    target = load_target(ModelConfig(dtype="bfloat16"), ENGINE, quiet, heads)
    assert_is_bfloat16(target.model)
    questions = ("Name three colours.", "Count from one to twelve, and then again from one to twelve.", "Hello!")
    requests = [
        GenerationRequest(text, tuple(target.tokenizer.render_chat([{"role": "user", "content": text}])), sampling)
        for text, sampling in zip(questions, [replace(GREEDY, max_tokens=10)] * len(questions), strict=True)
    ]
    plain = answer(target, ENGINE, requests, None)
    ties = NearTies(target.model, [(each, plain.results[each.request_id].token_ids) for each in requests])
    arms_: dict[str, Answers] = {
        "ngram": answer(target, ENGINE, requests, NgramProposer(1, 3)),
        "draft_model": answer(target, ENGINE, requests, shipped_draft(target, "bfloat16")),
        **{name: answer(target, ENGINE, requests, head, reader) for name, head, reader in heads.on(target)},
    }
    for name, answers in arms_.items():
        for each in requests:
            assert ties.farthest(each, answers.results[each.request_id].token_ids) <= ties.most, (name, each.request_id)
    assert sum(answers.accepted for answers in arms_.values()) > 0
    first, second = (plain.results[text].token_ids for text in questions[:2])
    assert ties.farthest(requests[0], [*first[:5], *second[5:]]) > ties.most
