"""What the engine shows a reader of features: the target's own states on every committed token, once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from replicas.engine.features import Seen
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from replicas.speculation.messages import Closing, Opening
from tests.replicas.engine.requests import GREEDY, request
from tests.replicas.engine.rig import BranchingProposer, KnowingProposer, LyingProposer, Rig, ScriptedProposer
from tests.tiny_models import tiny_model_folder

TAPS = (1, 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny") / "model")
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=110, taps=TAPS)


class Reader:
    """Checks every chunk against a pass over the whole text."""

    def __init__(self, proposer: ScriptedProposer) -> None:
        self.read_to: dict[int, int] = {}
        self.followers: dict[int, list[int]] = {}
        self.features: dict[int, list[torch.Tensor]] = {}
        self.restarts = 0
        self._open, self._close = proposer.open, proposer.close
        proposer.open = self.open  # type: ignore[method-assign]
        proposer.close = self.close  # type: ignore[method-assign]
        self._proposer = proposer

    def read(self, seen: Sequence[Seen]) -> None:
        for chunk in seen:
            assert chunk.features.shape == (len(chunk.followers), 48 * len(TAPS))
            if chunk.position == 0:
                self.restarts += chunk.sequence_id in self.features
                self.read_to[chunk.sequence_id] = 0
                self.followers[chunk.sequence_id], self.features[chunk.sequence_id] = [], []
            assert chunk.position == self.read_to[chunk.sequence_id], "a gap"
            self.read_to[chunk.sequence_id] += len(chunk.followers)
            self.followers[chunk.sequence_id] += chunk.followers
            self.features[chunk.sequence_id] += list(chunk.features.clone())

    def open(self, opening: Opening) -> None:
        assert self.read_to[opening.sequence_id] == len(opening.token_ids) - 1, "the prompt was not shown"
        assert self.followers[opening.sequence_id] == list(opening.token_ids[1:])
        self._open(opening)

    def close(self, closing: Closing) -> None:
        """A sequence that was read is closed even if it never was opened."""
        for sequence_id in closing.sequence_ids:
            self.read_to.pop(sequence_id, None)
        known = tuple(number for number in closing.sequence_ids if number in self._proposer.open_ids)
        self._close(Closing(known, closing.reason))


@pytest.mark.parametrize("kind", [KnowingProposer, BranchingProposer])
def test_features_are_those_of_a_pass_over_the_whole_text(model: DecoderModel, kind: type[KnowingProposer]) -> None:
    sampling = replace(GREEDY, max_tokens=24, ignore_eos=True)
    requests = [request(f"r{n}", replace(sampling, temperature=n * 0.4), prompt_length=9) for n in range(5)]
    plain = Rig(model, max_num_batched_tokens=16).run(*requests)
    proposer = kind(requests, lambda each: plain[each.request_id], error_rate=0.3)
    reader = Reader(proposer)
    rig = Rig(model, proposer=proposer, reader=reader, max_num_batched_tokens=16)
    results = rig.run(*requests)
    assert reader.restarts > 0, "nothing was preempted"
    assert not reader.read_to, "a sequence was not closed"
    for number, each in enumerate(requests, start=1):
        text = (*each.prompt_token_ids, *results[each.request_id].token_ids)
        shown = len(reader.features[number])
        assert shown > len(each.prompt_token_ids)
        assert tuple(reader.followers[number]) == text[1 : shown + 1]
        whole = model.forward([Segment(0, 0, text[:shown], 0)]).features
        assert whole is not None
        torch.testing.assert_close(torch.stack(reader.features[number]), whole, rtol=1e-4, atol=1e-4)


def test_a_request_that_wants_no_drafts_is_not_shown(model: DecoderModel) -> None:
    asked = replace(request("a"), num_speculative_tokens=0)
    proposer = LyingProposer()
    reader = Reader(proposer)
    Rig(model, proposer=proposer, reader=reader).run(asked)
    assert not reader.features


def test_a_prompt_that_is_cancelled_half_way_is_closed(model: DecoderModel, tmp_path: Path) -> None:
    asked = request("a", prompt_length=40)
    proposer = LyingProposer()
    reader = Reader(proposer)
    rig = Rig(model, proposer=proposer, reader=reader, max_num_batched_tokens=16)
    rig.submit(asked)
    rig.step()
    assert reader.read_to == {1: 16}
    rig.engine.cancel("router", ["a"])
    assert not reader.read_to
