from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from replicas.engine import drawn_rows, step
from replicas.engine.drawn_rows import RowRange, joined, on_host
from tests.replicas.engine.requests import GREEDY, mixed_requests, request
from tests.replicas.engine.rig import KnowingProposer, Rig, fake_twin


def ranges_of(source: Tensor, lengths: Sequence[int]) -> list[RowRange]:
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return [RowRange(source, end - length, end) for end, length in zip(ends, lengths, strict=True)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_joined_rows_are_all_of_them_in_order(lengths: list[int], data: st.DataObject) -> None:
    source = torch.arange(2 * sum(lengths)).view(-1, 2)
    chosen = [each for each in ranges_of(source, lengths) if data.draw(st.booleans())]
    expected = [row for each in chosen for row in each.rows.tolist()]
    if expected:
        assert joined(chosen).tolist() == expected


def test_neighbours_are_joined_without_a_copy() -> None:
    source = torch.arange(10).view(5, 2)
    first, empty, second, third = ranges_of(source, [1, 0, 2, 2])
    assert joined([second, third]).data_ptr() == source[1].data_ptr()
    assert joined([first, RowRange(source, 4, 4), second]).data_ptr() == source.data_ptr()
    assert joined([first, empty, third]).data_ptr() != source.data_ptr()


class Elsewhere:
    """The meta device stands for a GPU."""

    def __init__(self) -> None:
        self.copied: list[int] = []

    def to_host(self, tensor: Tensor) -> Tensor:
        self.copied.append(len(tensor))
        return torch.zeros(tensor.shape)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    fake = Elsewhere()
    monkeypatch.setattr(drawn_rows, "to_host", fake.to_host)
    return fake


def test_only_wanted_rows_are_copied_and_all_at_once(elsewhere: Elsewhere) -> None:
    source = torch.empty((9, 4), device="meta")
    ranges = ranges_of(source, [1, 3, 0, 2, 3])
    found = on_host(ranges, [False, True, True, False, True])
    assert elsewhere.copied == [6]
    assert [each.source.device.type for each in found] == ["meta", "cpu", "meta", "meta", "cpu"]
    assert [each.rows.shape for each in found] == [each.rows.shape for each in ranges]
    assert [(each.begin, each.end) for each in found if each.source.device.type == "cpu"] == [(0, 3), (3, 6)]


def test_nothing_is_copied_where_nothing_is_wanted_or_all_is_there(elsewhere: Elsewhere) -> None:
    there, here = ranges_of(torch.empty((3, 4), device="meta"), [1, 2]), ranges_of(torch.zeros(3, 4), [1, 2])
    assert on_host(there, [False, False]) == there
    assert on_host(here, [True, False]) == here
    assert elsewhere.copied == []


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each step moved; they lie in a copy here too."""
    counts: list[int] = []

    def copying(ranges: Sequence[RowRange], wanted: Sequence[bool]) -> list[RowRange]:
        counts.append(sum(len(each) for each, is_wanted in zip(ranges, wanted, strict=True) if is_wanted))
        copies = [RowRange(each.rows.clone(), 0, len(each)) for each in ranges]
        return [copy if is_wanted else each for each, copy, is_wanted in zip(ranges, copies, wanted, strict=True)]

    monkeypatch.setattr(step, "on_host", copying)
    return counts


def test_a_prompts_log_probabilities_are_not_moved_for_those_who_draw(moved: list[int]) -> None:
    asked = replace(GREEDY, max_tokens=3, ignore_eos=True)
    random = request("random", replace(asked, temperature=1.0), prompt_length=4)
    prompt = request("prompt", replace(asked, prompt_logprobs=True), prompt_length=40)
    results = Rig().run(random, prompt)
    assert moved == [1, 1, 1]
    assert len(results["prompt"].prompt_logprobs) == 40
    assert results["random"].answer() == fake_twin(random).answer()


@pytest.mark.parametrize("is_speculative", [False, True])
def test_where_rows_lie_changes_no_token(moved: list[int], is_speculative: bool) -> None:
    requests = mixed_requests()
    proposer = KnowingProposer(requests, fake_twin, error_rate=0.3) if is_speculative else None
    results = Rig(proposer=proposer).run(*requests)
    assert any(moved)
    for each in requests:
        assert results[each.request_id].answer() == fake_twin(each).answer()
