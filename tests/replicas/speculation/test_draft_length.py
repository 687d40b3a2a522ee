"""Draft lengths against brute force, and over time against proposers of every quality."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.generation import Round
from replicas.speculation.best_lengths import Candidate, Costs, choose_lengths
from replicas.speculation.draft_length import PLAIN_EVERY_STEPS, AcceptanceEstimate, DraftLengths
from replicas.speculation.probes import PROBE_EVERY_STEPS, PROBE_ROUNDS
from replicas.speculation.step_costs import ENOUGH_DRAFTS, ENOUGH_PLAIN_STEPS, Line

seconds = st.floats(1e-4, 0.1)
lines = st.builds(Line, fixed=seconds, slope=st.floats(0, 0.1))
level_rows = st.lists(st.integers(1, 8), max_size=4).map(tuple)
candidates = st.builds(Candidate, acceptance=st.floats(0, 1), cap=st.integers(0, 4))
CAP = 6
LESSONS = ENOUGH_DRAFTS + ENOUGH_PLAIN_STEPS


def tokens_per_second(batch: list[Candidate], lengths: tuple[int, ...], costs: Costs) -> float:
    """The cost model, written out."""
    tokens = sum(sum(one.acceptance**i for i in range(k + 1)) for one, k in zip(batch, lengths, strict=True))
    rows = sum(sum((*costs.level_rows, 1, 1, 1, 1)[:k]) for k in lengths)
    drafting = costs.draft.at(max(lengths) - 1) if any(lengths) else 0.0
    return tokens / (costs.target.at(rows) + drafting)


@given(
    st.lists(candidates, min_size=1, max_size=3),
    st.one_of(
        st.tuples(st.builds(Costs, lines, lines, level_rows), st.none()),
        st.tuples(st.builds(Costs, lines, lines), st.integers(0, 13)),
    ),
)
def test_no_other_lengths_are_faster(batch: list[Candidate], case: tuple[Costs, int | None]) -> None:
    costs, room = case
    choice = choose_lengths(batch, costs, room)
    found = tokens_per_second(batch, choice.lengths, costs)
    product = itertools.product(*(range(one.cap + 1) for one in batch))
    every = [lengths for lengths in product if room is None or sum(lengths) <= room]
    assert room is None or sum(choice.lengths) <= room
    assert found == pytest.approx(max(tokens_per_second(batch, lengths, costs) for lengths in every), rel=1e-9)
    assert choice.rate == pytest.approx(found)


@given(st.lists(candidates, min_size=1, max_size=4), st.builds(Costs, lines, lines))
def test_speculation_is_never_expected_to_be_slower_than_none(batch: list[Candidate], costs: Costs) -> None:
    assert choose_lengths(batch, costs).rate >= tokens_per_second(batch, (0,) * len(batch), costs) * (1 - 1e-12)


@given(lines, seconds, st.integers(0, 4))
def test_a_proposer_that_is_never_right_gets_nothing_to_do(target: Line, draft: float, cap: int) -> None:
    assert choose_lengths([Candidate(0.0, cap)], Costs(target, Line(0.0, draft))).lengths == (0,)


def test_the_same_acceptance_is_worth_drafting_while_rows_are_cheap_only() -> None:
    draft = Line(0.002, 0.001)
    batch = [Candidate(0.6, 4)] * 8
    assert all(choose_lengths(batch, Costs(Line(0.03, 0.0001), draft)).lengths)
    assert not any(choose_lengths(batch, Costs(Line(0.0, 0.004), draft)).lengths)


def test_a_late_round_is_a_failure_and_a_round_without_a_draft_teaches_nothing() -> None:
    estimate = AcceptanceEstimate(0.5, 4)
    assert estimate.after(Round(0, 0, late=True), 24).rate < 0.5
    assert estimate.after(Round(0, 0), 24) == estimate


@given(st.lists(st.integers(0, 4), max_size=60))
def test_the_estimate_stays_a_probability_and_its_memory_bounded(accepted: list[int]) -> None:
    estimate = AcceptanceEstimate()
    for count in accepted:
        estimate = estimate.after(Round(4, count), 24)
        assert 0 <= estimate.rate <= 1
        assert estimate.trials <= 24


class Serving:
    """A batch that is stepped with a proposer of given quality and given costs; all chance is seeded."""

    def __init__(self, target: Line, draft: Line, sequences: int = 2, catch_up_seconds: float = 0.0) -> None:
        """`catch_up_seconds`: what the first draft after a step without one takes beyond its own."""
        self.lengths = DraftLengths()
        self.seconds, self.tokens = 0.0, 0
        self._target, self._draft, self._catch_up = target, draft, catch_up_seconds
        self._wants = dict.fromkeys(range(sequences), CAP)
        self._has_drafted = True
        self._random = random.Random(5)

    def step(self, acceptance: float) -> list[int]:
        """One step; returns what was drafted for each sequence."""
        drafted = list(self._wants.values())
        if any(drafted):
            self._wait(self._draft.at(max(drafted)) + (0.0 if self._has_drafted else self._catch_up), max(drafted))
        self._has_drafted = any(drafted)
        rows = sum(drafted) + len(drafted)
        self.lengths.observe_target(sum(drafted), self._target.at(rows))
        self.seconds += self._target.at(rows)
        for sequence_id, length in self._wants.items():
            accepted = 0
            while accepted < length and self._random.random() < acceptance:
                accepted += 1
            self.tokens += 1 + accepted
            self.lengths.observe_round(sequence_id, Round(length, accepted))
        self._wants = self.lengths.choose(dict.fromkeys(self._wants, CAP))
        return drafted

    def _wait(self, seconds: float, depth: int) -> None:
        self.lengths.observe_draft(depth, seconds)
        self.seconds += seconds

    def run(self, steps: int, acceptance: float) -> list[list[int]]:
        return [self.step(acceptance) for _ in range(steps)]

    def speed_up(self, steps: int, acceptance: float) -> float:
        """Tokens per second of so many further steps, over what they are without a proposer."""
        seconds, tokens = self.seconds, self.tokens
        self.run(steps, acceptance)
        alone = len(self._wants) / self._target.at(len(self._wants))
        return (self.tokens - tokens) / (self.seconds - seconds) / alone


CHEAP = (Line(0.03, 0.0002), Line(0.001, 0.002))


def test_a_useless_proposer_is_asked_only_to_see_whether_it_got_better() -> None:
    steps = Serving(*CHEAP).run(700, acceptance=0.0)[200:]
    asked = [drafted for drafted in steps if any(drafted)]
    assert all(max(drafted) == 1 for drafted in asked)
    assert 4 * PROBE_ROUNDS <= len(asked) <= PROBE_ROUNDS * (1 + 500 // PROBE_EVERY_STEPS)


@pytest.mark.parametrize("acceptance", [0.0, 0.5])
@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize(
    ("target", "draft", "catch_up_seconds"),
    [
        (Line(0.03, 0.0), Line(0.2, 0.01), 0.0),
        (Line(0.03, 0.0), Line(0.2, 0.01), 0.5),
        (Line(0.1, 0.0), Line(0.05, 0.0), 0.2),
        (Line(0.0, 0.01), Line(0.01, 0.0), 0.0),
        (Line(0.03, 0.0002), Line(0.001, 0.002), 0.0),
    ],
    ids=["slow", "slow to resume", "like a process of its own", "every row counts", "cheap"],
)
@pytest.mark.parametrize("steps", [1000, pytest.param(2500, marks=pytest.mark.slow)])
def test_what_a_proposer_costs_beyond_what_it_brings_is_hardly_felt(
    target: Line, draft: Line, catch_up_seconds: float, sequences: int, acceptance: float, steps: int
) -> None:
    serving = Serving(target, draft, sequences, catch_up_seconds)
    serving.run(100, acceptance)
    assert serving.speed_up(steps, acceptance) >= 0.97


def test_a_perfect_proposer_is_asked_for_all_it_may_draft() -> None:
    assert Serving(*CHEAP).run(100, acceptance=1.0)[-1] == [CAP, CAP]


def test_a_proposer_that_becomes_good_is_found_out() -> None:
    serving = Serving(*CHEAP)
    assert serving.run(200, acceptance=0.0)[-1] == [0, 0]
    steps = serving.run(40 * PROBE_EVERY_STEPS, acceptance=0.95)
    assert min(steps[-1]) >= 3


def test_what_a_large_batch_costs_does_not_keep_a_small_one_from_drafting() -> None:
    """A level of eight sequences takes longer than one of a single sequence."""
    lengths = measured(8, seconds=0.5)
    assert not any(lengths.choose(dict.fromkeys(range(8), CAP)).values())
    lengths.forget(range(8))
    assert lengths.choose({0: CAP}) == {0: CAP}, "nothing is known of a single sequence"
    learn(lengths, 1, seconds=0.001)
    assert lengths.choose({0: CAP})[0] > 0
    assert not any(lengths.choose(dict.fromkeys(range(8), CAP)).values())


def test_a_round_that_first_catches_up_is_no_measure_of_the_next() -> None:
    """Drafting has become free, but whoever resumes it reads for 0.3 s what was generated without it."""
    lengths = measured(1, seconds=0.1)
    drafted = [0]
    for _ in range(200 * PROBE_EVERY_STEPS):
        drafted.append(lengths.choose({1: CAP})[1])
        if drafted[-1]:
            lengths.observe_draft(drafted[-1], 0.0 if drafted[-2] else 0.3)
    assert drafted[-PLAIN_EVERY_STEPS:].count(0) <= 1


def test_a_probe_lasts_until_the_draft_has_read_the_prompts_and_shown_what_a_round_costs() -> None:
    lengths = measured(1, seconds=0.1)
    reading, rounds = 40, 0
    for _ in range(200 * PROBE_EVERY_STEPS):
        if rounds:
            break
        is_tried = lengths.choose({1: CAP}) == {1: 1}
        reading -= is_tried
        if is_tried and reading <= 0:
            lengths.observe_draft(1, 0.1)
            rounds += 1
    asked = [lengths.choose({1: CAP}) for _ in range(2)]
    lengths.observe_draft(1, 0.1)
    assert [*asked, lengths.choose({1: CAP})] == [{1: 1}, {1: 1}, {1: 0}]


def test_a_probe_that_nobody_answers_ends() -> None:
    lengths = measured(1, seconds=0.1)
    asked = [lengths.choose({1: CAP})[1] for _ in range(1000 * PROBE_EVERY_STEPS // 10)]
    assert 0 < sum(asked) <= len(asked) / 2


def measured(batch: int, seconds: float) -> DraftLengths:
    """Lengths that know what a draft costs in a batch of this size, and that rows of the target cost nothing there."""
    lengths = DraftLengths()
    learn(lengths, batch, seconds)
    return lengths


def learn(lengths: DraftLengths, batch: int, seconds: float) -> None:
    for _ in range(LESSONS):
        drafted = lengths.choose(dict.fromkeys(range(batch), CAP))
        if any(drafted.values()):
            lengths.observe_draft(max(drafted.values()), seconds)
        lengths.observe_target(sum(drafted.values()), 0.03)


def test_nothing_is_chosen_before_something_is_measured() -> None:
    lengths = DraftLengths()
    assert lengths.choose({1: 4, 2: 0}) == {1: 4, 2: 0}
    lengths.observe_draft(4, 0.001)
    assert lengths.choose({1: 4, 2: 0}) == {1: 1, 2: 0}, "a short one tells what a level costs"


@given(st.lists(st.integers(0, CAP), min_size=1, max_size=5), st.floats(0, 1), st.integers(0, 200))
def test_no_length_exceeds_its_cap_even_when_probing(caps: list[int], acceptance: float, steps: int) -> None:
    serving = Serving(*CHEAP)
    serving.run(steps % 70, acceptance)
    chosen = serving.lengths.choose(dict(enumerate(caps)))
    assert all(0 <= chosen[index] <= cap for index, cap in enumerate(caps))


def test_a_poor_sequence_is_tried_again_beside_good_ones() -> None:
    lengths = measured(2, seconds=0.005)
    for _ in range(40):
        lengths.observe_round(0, Round(4, 4))
        lengths.observe_round(1, Round(1, 0))
        lengths.observe_target(4, 0.04)
        lengths.observe_target(0, 0.03)
    quiet = PROBE_EVERY_STEPS - ENOUGH_PLAIN_STEPS
    chosen = [lengths.choose({0: 4, 1: 4}) for _ in range(quiet)]
    assert all(step[0] == 4 for step in chosen)
    assert [step[1] for step in chosen] == [0] * (quiet - 1) + [1]


def test_trees_of_equal_sequences_share_what_room_there_is() -> None:
    """63 nodes each, and eight rows of 256 taken by the sequences themselves."""
    costs = Costs(Line(0.03, 0.0), Line(0.001, 0.001), level_rows=(3, 12, 48))
    lengths = choose_lengths([Candidate(0.7, 3)] * 8, costs, 248).lengths
    assert sum(costs.draft_rows(3)[length] for length in lengths) <= 248
    assert min(lengths) >= 2


def test_where_not_all_have_room_everyone_has_a_turn() -> None:
    lengths = measured(4, seconds=0.001)
    drafted = [lengths.choose(dict.fromkeys(range(4), 1), 2) for _ in range(8)]
    assert all(sum(step.values()) <= 2 for step in drafted)
    assert [sum(step[key] for step in drafted) for key in range(4)] == [4] * 4


def test_a_forgotten_sequence_starts_from_what_the_others_showed() -> None:
    lengths = measured(1, seconds=0.004)
    for _ in range(100):
        lengths.observe_round(1, Round(4, 0))
    assert lengths.choose({1: 4}) == {1: 0}
    lengths.forget([1])
    assert lengths.choose({1: 4}) == {1: 0}
