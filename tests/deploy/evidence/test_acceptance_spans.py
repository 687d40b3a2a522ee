"""What would have been accepted of shorter drafts, beside a second, plain count of the same rounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.acceptance_spans import predicted, share_at, spans_by_length
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, ServerFigures, Timing
from deploy.evidence.pairing import PairedRound, Timed
from fleet.traffic import Outcome

DRAFT = 4


def request(accepted: list[int], drafted: list[int] | None = None) -> MeasuredRequest:
    """A request whose rounds accepted so many of so many tokens."""
    counts = tuple(accepted.count(number) for number in range(max(accepted) + 1))
    total = sum(drafted or [DRAFT] * len(accepted))
    return MeasuredRequest(
        0, "chat", Outcome.DONE, 0.0, ((0.1, 1), (0.2, 5)), 5, total, sum(accepted), counts, None, 0, "d", False
    )


rounds = st.lists(st.integers(0, DRAFT), min_size=1, max_size=40)


@given(rounds, st.integers(1, 6))
def test_a_shorter_draft_accepts_the_same_prefix(accepted: list[int], length: int) -> None:
    shorter = [(min(length, number), min(length, DRAFT)) for number in accepted]
    expected = sum(number for number, _ in shorter) / sum(drafted for _, drafted in shorter)
    assert share_at(request(accepted), length) == pytest.approx(expected)
    assert share_at(request(accepted), DRAFT) == pytest.approx(share_at(request(accepted), None))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1), st.integers(1, 4))
def test_drafts_of_changing_length_give_a_share_all_the_same(pairs: list[tuple[int, int]], length: int) -> None:
    accepted = [min(pair) for pair in pairs]
    drafted = [max(1, *pair) for pair in pairs]
    assert 0 <= share_at(request(accepted, drafted), length) <= 1


def test_the_first_token_is_accepted_far_more_often_than_all_four_together() -> None:
    # Positions 1 to 4 are accepted in 70, 45, 30 and 20 of 100 rounds.
    of_hundred = request([0] * 30 + [1] * 25 + [2] * 15 + [3] * 10 + [4] * 20)
    assert [share_at(of_hundred, length) for length in (1, 2, 4)] == pytest.approx([0.7, 0.575, 0.4125])


def paired(accepted: list[int]) -> PairedRound:
    timed = tuple(Timed(item, Timing.of(item)) for item in [request(accepted)])
    block = MeasuredBlock("c1/greedy", 0, "a", 1.0, 1.0, 6, 1, 0.0, ServerFigures(), (timed[0].request,))
    return PairedRound(block, replace(block, arm="b"), timed, timed)


def test_there_is_a_span_for_every_length_up_to_the_longest_that_was_accepted() -> None:
    found = spans_by_length([paired([number % 4, 1, 0]) for number in range(8)])
    assert len(found) == 3
    means = [sum(min(number, 1) for number in (of % 4, 1, 0)) / 3 for of in range(8)]
    assert found[0] == pytest.approx(predicted(means))


def test_nothing_is_expected_of_few_rounds_or_of_none_that_drafted() -> None:
    assert spans_by_length([paired([1, 2])] * 4) == ()
    silent = paired([1])
    nothing = replace(silent.candidate_requests[0].request, drafted=0, accepted=0, rounds_by_accepted=())
    timed = (Timed(nothing, Timing.of(nothing)),)
    assert spans_by_length([replace(silent, candidate_requests=timed)] * 9) == ()
