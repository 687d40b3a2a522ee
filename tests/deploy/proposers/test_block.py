"""Blocks on a tiny model: every proposer answers what the baseline answers, and the notes add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench.prompts import Prompt
from deploy.bench.proposers.arms import Stage, stage
from deploy.bench.proposers.block import OWNER, requests_of, run_block
from deploy.bench.proposers.plan import BASELINE, Arm, Cell, Place
from deploy.bench.verify_cost import medians, step_samples
from fleet.config import DrillConfig, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest, TokenChunk
from tests.replicas.heads.checkpoints import eagle3
from tests.tiny import VOCABULARY
from tests.tiny_models import SIZES, tiny_model_folder

PROMPTS = tuple(Prompt(str(n), "chat", (f"There was a river, there was a bridge {n}",)) for n in range(4))
CELL = Cell(0.0, 2, "chat")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny") / "target", LlamaConfig(**sizes))
    engine = EngineConfig(device="cpu", threads=1, max_num_seqs=2, kv_cache_tokens=600)
    with stage(ModelConfig(model=str(folder), dtype="float32"), engine, lambda line: None) as made:
        yield made


def arms(folder: Path) -> list[Arm]:
    def fixed(method: str, **keys: object) -> SpeculativeConfig:
        return SpeculativeConfig.model_validate({"method": method, "adaptive": False, **keys})

    eagle3_folder = str(eagle3(vocab_size=VOCABULARY).write(folder / "eagle3"))
    return [
        Arm("ngram", fixed("ngram", prompt_lookup_min=1)),
        Arm("suffix", fixed("suffix")),
        Arm("eagle3", fixed("eagle3", model=eagle3_folder, num_speculative_tokens=3)),
        Arm("tree", fixed("eagle3", model=eagle3_folder, tree=[2, 2])),
        Arm("useless", fixed("eagle3", model=eagle3_folder), DrillConfig(useless_draft=True)),
    ]


def test_all_arms_commit_as_many_tokens_as_the_baseline_and_note_their_rounds(shared: Stage, tmp_path: Path):
    baseline = shared.serve(Arm(BASELINE))
    wanted = answers(shared, Arm(BASELINE))
    for arm in arms(tmp_path):
        served, place = shared.serve(arm), Place(0, CELL, arm)
        measured = run_block(served, place, requests_of(PROMPTS, place, served.target.tokenizer, 12))
        notes = measured.notes
        assert notes.rounds > 0, arm.name
        assert notes.drafted or arm.name in ("ngram", "suffix"), "look-up may find nothing in a random text"
        assert sum(notes.accepted) <= sum(notes.drafted), arm.name
        assert arm.speculative is not None
        assert len(notes.accepted) <= len(notes.drafted) <= arm.speculative.draft_length, arm.name
        assert notes.verify_steps <= notes.asked_steps, arm.name
        is_head = arm.speculative.method == "eagle3"
        assert (notes.read_steps > notes.asked_steps) == is_head, "a head also reads the steps that have a prompt"
        assert (notes.read_seconds > 0) == is_head, arm.name
        assert notes.off == 0, "nothing is adaptive, and no answer ends by its length alone"
        assert answers(shared, arm) == wanted, arm.name
    assert not baseline.engine.has_work


def answers(shared: Stage, arm: Arm) -> dict[str, list[int]]:
    """Token ids by request."""
    served, place = shared.serve(arm), Place(0, CELL, arm)
    found: dict[str, list[int]] = {}
    for request in requests_of(PROMPTS[:2], place, served.target.tokenizer, 12):
        served.engine.submit(request, OWNER)
    while served.engine.has_work:
        for output in served.engine.step().get(OWNER, []):
            assert isinstance(output, TokenChunk)
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return found


def test_a_block_ends_when_fewer_requests_than_its_concurrency_are_left_and_leaves_nothing_behind(shared: Stage):
    served, place = shared.serve(Arm(BASELINE)), Place(0, CELL, Arm(BASELINE))
    measured = run_block(served, place, requests_of(PROMPTS[:3], place, served.target.tokenizer, 10))
    assert 0 < measured.tokens <= 28, "the first answers' first tokens are not counted, nor the time until then"
    assert measured.seconds > 0
    assert measured.notes.plain_steps > 0
    assert not served.engine.has_work


def test_a_request_that_the_engine_refuses_ends_the_run_in_one_line(shared: Stage):
    served, place = shared.serve(Arm(BASELINE)), Place(0, Cell(0.0, 1, "chat"), Arm(BASELINE))
    request = requests_of(PROMPTS[:1], place, served.target.tokenizer, 10)[0]
    with pytest.raises(ConfigError, match="the engine cannot answer a prompt"):
        run_block(served, place, [GenerationRequest("x", (), request.sampling)])


def test_a_step_is_timed_for_every_number_of_rows(shared: Stage):
    model = shared.serve(Arm(BASELINE)).target.model
    seconds = step_samples(model, [1, 2], [1, 3], context=20, repetitions=2)
    assert set(seconds) == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(len(each) == 2 for each in seconds.values())
    assert min(medians(seconds).values()) > 0
