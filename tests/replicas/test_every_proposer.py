"""Hundreds of different requests, side by side: with every proposer the answers are the baseline's, token for token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench.growth import container_sizes
from fleet.clock import SystemClock
from fleet.config import SpeculativeConfig
from fleet.generation import GenerationRequest, Round
from replicas.engine.features import FeatureReader
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.sampling import Sampler
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.loading import PublishedHead
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Proposer
from replicas.speculation.suffix import SuffixLimits, SuffixProposer
from tests.replicas.engine.requests import mixed_requests
from tests.replicas.engine.rig import Result, Rig, tiny_tokenizer
from tests.replicas.heads import checkpoints
from tests.replicas.memory_draft import MemoryDraft
from tests.tiny_models import SIZES, tiny_model_folder

VOCABULARY = checkpoints.VOCABULARY
CONFIG = LlamaConfig(
    **{**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
)
COPIES = 17
"""Of the mixed requests, each with other prompts and seeds."""
MEMORIES = {"Occurrences._latest", "Occurrences._ends"}
"""What outlives its sequences, within bounds: the finished outputs that suffix decoding looks in."""
PREFERRED = ((20, 12.0), (30, 12.0), (40, 12.0))
"""A bias towards few tokens makes even untrained proposers agree with the target now and then."""


def many_requests() -> list[GenerationRequest]:
    return [
        replace(
            each,
            request_id=f"{each.request_id}-{copy}",
            prompt_token_ids=tuple(3 + (token + 11 * copy) % (VOCABULARY - 3) for token in each.prompt_token_ids),
            sampling=replace(
                each.sampling, seed=each.sampling.seed + copy, logit_bias=(*each.sampling.logit_bias, *PREFERRED)
            ),
        )
        for copy in range(COPIES)
        for each in mixed_requests()
        if each.sampling.max_tokens <= 20
    ]


REQUESTS = many_requests()


@dataclass
class Arm:
    """A proposer on a target."""

    model: DecoderModel
    proposer: Proposer
    reader: FeatureReader | None = None

    @property
    def keepers(self) -> tuple[object, ...]:
        """Whoever keeps something for each sequence."""
        if not isinstance(self.proposer, MemoryDraft):
            return (self.proposer,)
        self.proposer.exchange()  # the last closings are still on their way
        return (self.proposer.target, self.proposer.draft, self.proposer.engine)


def load(folder: Path, *, taps: tuple[int, ...] = (), layers: int | None = None, kv_tokens: int = 600) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=kv_tokens, taps=taps, layers=layers)


def sampler() -> Sampler:
    return Sampler(VOCABULARY, tiny_tokenizer().eos_token_ids)


def draft_model(folder: Path, head_at: Path) -> Arm:
    other = load(tiny_model_folder(head_at, CONFIG, seed=1), kv_tokens=2000)
    return Arm(load(folder), MemoryDraft(other, sampler(), vocab_size=VOCABULARY))


def first_layers(folder: Path, head_at: Path) -> Arm:
    model = load(folder, layers=6, kv_tokens=2000)
    return Arm(load(folder), MemoryDraft(model, sampler(), draft_ahead=True, vocab_size=VOCABULARY))


def ngram(folder: Path, head_at: Path) -> Arm:
    return Arm(load(folder), NgramProposer(1, 3))


def suffix(folder: Path, head_at: Path) -> Arm:
    return Arm(load(folder), SuffixProposer(SuffixLimits(24, 2.0, 0.0), 100))


def head(method: str, files: Callable[[], checkpoints.Files], tree: tuple[int, ...] | None) -> Callable[..., Arm]:
    def arm(folder: Path, head_at: Path) -> Arm:
        config = SpeculativeConfig.model_validate(
            {"method": method, "model": "head", "num_speculative_tokens": 3, "tree": tree}
        )
        published = PublishedHead(config, read_checkpoint(files().write(head_at)))
        model = load(folder, taps=published.taps(CONFIG.num_hidden_layers))
        proposer, _ = published.on(model, "tiny-target", sampler(), SystemClock())
        return Arm(model, proposer, proposer)

    return arm


TREE = (3, 2, 1)
ARMS: dict[str, Callable[[Path, Path], Arm]] = {
    "draft_model": draft_model,
    "layers": first_layers,
    "ngram": ngram,
    "suffix": suffix,
    "eagle": head("eagle", checkpoints.eagle_vicuna, None),
    "eagle-tree": head("eagle", checkpoints.eagle_vicuna, TREE),
    "eagle3": head("eagle3", checkpoints.eagle3, None),
    "eagle3-tree": head("eagle3", checkpoints.eagle3, TREE),
    "medusa": head("medusa", checkpoints.medusa, None),
    "medusa-tree": head("medusa", checkpoints.medusa, TREE),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("target") / "model", CONFIG)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Result]:
    return Rig(load(folder)).run(*REQUESTS)


@pytest.mark.patient
@pytest.mark.parametrize("name", ARMS)
def test_answers_are_the_baselines(name: str, folder: Path, expected: dict[str, Result], tmp_path: Path) -> None:
    assert len({each.prompt_token_ids for each in REQUESTS}) >= 200
    arm = ARMS[name](folder, tmp_path / "draft")
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    rig = Rig(arm.model, proposer=arm.proposer, reader=arm.reader, must_answer=False, **limits)
    before = container_sizes((rig.engine, *arm.keepers))
    rig.run(*REQUESTS)
    after = container_sizes((rig.engine, *arm.keepers))
    assert {entry for entry, size in after.items() if size > before.get(entry, 0)} <= MEMORIES
    for each in REQUESTS:
        mine, theirs = rig.results[each.request_id], expected[each.request_id]
        assert mine.answer() == theirs.answer(), each.request_id
        assert [entry.token_id for entry in mine.logprobs] == [entry.token_id for entry in theirs.logprobs]
        differences = [abs(a.logprob - b.logprob) for a, b in zip(mine.logprobs, theirs.logprobs, strict=True)]
        assert max(differences, default=0.0) < 1e-3
    rounds: list[Round] = [chunk.round for result in rig.results.values() for chunk in result.chunks if chunk.round]
    assert sum(round_.drafted for round_ in rounds) > len(REQUESTS)
    assert sum(round_.accepted for round_ in rounds) > 0.05 * len(rounds)
