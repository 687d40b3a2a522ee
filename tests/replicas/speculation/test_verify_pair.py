"""Whatever the network and the draft do, the target's text is its own, nothing raises, and good times come back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.speculation.messages import Opening, Proposal, Resync, SequenceVerdict
from replicas.speculation.proposer import ProposerHealth
from replicas.speculation.rejection import Sparse
from tests.replicas.verify_pair import HELLO, LIMITS, VOCABULARY, Pair, ToyEngine, next_token, written

PROMPTS = {1: (1, 2, 3), 2: (9,) * 30, 3: (7, 7)}


@dataclass
class BadNetwork:
    """Follows a script: one word for each message, over and over."""

    script: list[str]
    position: int = 0
    held: tuple[object, ...] = ()

    def __call__(self, message: object) -> list[object]:
        action = self.script[self.position % len(self.script)]
        self.position += 1
        late, self.held = self.held, ()
        match action:
            case "lose":
                return [*late]
            case "repeat":
                return [*late, message, message]
            case "delay":
                self.held = (*late, message)
                return []
            case "swap":
                return [message, *late]
            case "deliver":
                return [*late, message]
            case _:
                return [*late, corrupted(message, action)]


def corrupted(message: object, how: str) -> object:
    match message:
        case Opening():
            return replace(message, token_ids=tuple(spoil(message.token_ids, how)))
        case Resync():
            return Resync(tuple(replace(key, epoch=key.epoch + 1) for key in message.keys))
        case tuple():
            return tuple(corrupted_item(item, how) for item in message)
    return message


def corrupted_item(item: Proposal | SequenceVerdict, how: str) -> Proposal | SequenceVerdict:
    match how:
        case "wrong base":
            return replace(item, base_length=item.base_length + 1)
        case "wrong epoch":
            return replace(item, epoch=item.epoch + 1)
        case "wrong sequence":
            return replace(item, sequence_id=item.sequence_id % 3 + 1)
    if isinstance(item, Proposal):
        token_ids = tuple(spoil(item.token_ids, how))
        named = [spoiled(q, how) for q in item.distributions]
        # A frame whose columns do not match is refused as a whole before it gets here, so every token has its own.
        further = named[-1:] * (len(token_ids) - len(named))
        return replace(item, token_ids=token_ids, distributions=(*named, *further))
    return replace(item, committed=tuple(spoil(item.committed, how)))


def spoil(token_ids: tuple[int, ...], how: str) -> list[int]:
    match how:
        case "other tokens":
            return [(token + 1) % VOCABULARY for token in token_ids]
        case "impossible tokens":
            return [token + VOCABULARY for token in token_ids]
        case "too many":
            return [*token_ids, *range(20)]
    return list(token_ids)


def spoiled(q: Sparse, how: str) -> Sparse:
    match how:
        case "not a number":
            return replace(q, weights=(nan,) * len(q.weights))
        case "other distributions":
            return Sparse.certain((q.token_ids[0] + 1) % VOCABULARY)
    return q


FAULTS = ["lose", "repeat", "delay", "swap"]
CORRUPTIONS = ["wrong base", "wrong epoch", "wrong sequence", "other tokens", "impossible tokens", "too many"]
MISSTATEMENTS = ["not a number", "other distributions"]


def run_badly(pair: Pair, script: list[str], rounds: int = 12) -> None:
    for sequence_id, prompt in PROMPTS.items():
        pair.open(sequence_id, prompt)
    pair.spoil(BadNetwork(script), BadNetwork(script[::-1]))
    for _ in range(rounds):
        pair.step()
    for sequence_id, prompt in PROMPTS.items():
        text = pair.texts[sequence_id]
        assert text == written(prompt, len(text))


def run_well(pair: Pair, rounds: int = 6) -> None:
    """The faults stop, what they cost is noticed, and the longest pause of the breaker passes."""
    pair.spoil()
    for _ in range(2):
        pair.clock.advance(40.0)
        for _ in range(rounds):
            pair.step()


def assert_all_free(pair: Pair) -> None:
    """Closing ends everything; what was lost on the way there falls to the lease."""
    pair.close(*pair.texts)
    pair.exchange()
    pair.clock.advance(LIMITS.lease_seconds + 1)
    pair.draft.expire(pair.now)
    pair.engine.run(pair.draft)
    assert len(pair.draft) == 0
    assert pair.engine.used_tokens == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["deliver", *FAULTS]), min_size=1, max_size=30), st.booleans(), st.booleans())
def test_loss_repetition_delay_and_reordering_change_nothing_and_are_recovered_from(script, draft_ahead, is_judged):
    pair = Pair(draft_ahead=draft_ahead, is_judged=is_judged, engine=ToyEngine(model=next_token))
    run_badly(pair, script)
    run_well(pair)
    proposals = pair.step()
    assert {key: len(p.token_ids) for key, p in proposals.items()} == dict.fromkeys(PROMPTS, 4)
    assert all(pair.accepted[key][-1] == 4 for key in PROMPTS)
    assert pair.target.counters.wrong == 0
    assert pair.target.state().health == ProposerHealth.HEALTHY
    assert_all_free(pair)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(["deliver", *FAULTS, *CORRUPTIONS, *MISSTATEMENTS]), min_size=1, max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_corruption_costs_at_most_the_drafts_of_the_sequences_it_hit(script, draft_ahead, is_judged):
    pair = Pair(draft_ahead=draft_ahead, is_judged=is_judged, engine=ToyEngine(model=next_token))
    run_badly(pair, script)
    run_well(pair)
    pair.open(4, (5, 6))
    for _ in range(4):
        pair.step()
    assert pair.accepted[4][-1] == 4
    assert pair.target.counters.wrong <= len(PROMPTS)
    assert_all_free(pair)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 60), st.booleans(), st.booleans())
def test_any_course_of_draft_lengths_and_a_restart_keep_draft_and_target_in_step(
    lengths, restart_at, draft_ahead, is_judged
):
    pair = Pair(draft_ahead=draft_ahead, is_judged=is_judged)
    pair.open(1, PROMPTS[1])
    pair.open(2, PROMPTS[2])
    for number, length in enumerate(lengths * 3):
        if number == restart_at % 20:
            pair.target.lose()
            pair.connect()
        pair.step(length)
    assert pair.texts[2] == written(PROMPTS[2], len(pair.texts[2]))
    run_well(pair)
    assert len(pair.step()[1].token_ids) == 4
    assert pair.target.counters.wrong == 0


def test_drafting_ahead_proposes_the_same_tokens_and_has_them_ready_on_a_hit():
    plain, ahead = Pair(), Pair(draft_ahead=True)
    ready = []
    for pair in (plain, ahead):
        pair.open(1)
    for _ in range(40):
        expected, got = plain.step(), ahead.step()
        assert {k: p.token_ids for k, p in got.items()} == {k: p.token_ids for k, p in expected.items()}
        ready += [proposal.was_ready for proposal in got.values()]
    assert plain.texts == ahead.texts
    assert any(ready)
    assert not all(ready)


def test_drafting_ahead_on_the_runner_up_catches_a_rejection():
    def wrong_by_one(text):
        """Always wrong, and the runner-up of the toy engine is always right."""
        return (next_token(text) + 1) % VOCABULARY

    pair = Pair(draft_ahead=True, engine=ToyEngine(model=wrong_by_one))
    pair.open(1)
    ready = [pair.step()[1].was_ready for _ in range(10)]
    assert set(pair.accepted[1]) == {0}
    assert all(ready[3:])


def test_a_full_cache_refuses_the_newest_sequence_and_takes_it_on_when_there_is_room_again():
    pair = Pair(engine=ToyEngine(model=next_token, capacity=100))
    pair.open(1, (1,) * 20)
    for _ in range(3):
        pair.step()
    pair.open(2, (2,) * 90)
    for _ in range(6):
        proposals = pair.step()
    assert len(proposals[1].token_ids) == 4
    assert proposals[2].token_ids == ()
    assert pair.target.state().health == ProposerHealth.HEALTHY
    pair.close(1)
    for _ in range(4):
        proposals = pair.step()
    assert len(pair.texts[2]) > 90


def test_a_draft_with_a_shorter_context_stops_proposing_there_and_the_target_goes_on():
    pair = Pair(engine=ToyEngine(model=next_token))
    pair.connect(replace(HELLO, max_model_len=40))
    pair.open(1, (1,) * 20)
    for _ in range(30):
        proposals = pair.step()
        drafted = len(proposals[1].token_ids)
        assert drafted == 0 or proposals[1].base_length + drafted <= 40
    assert pair.target.counters.late == 0
    assert len(pair.texts[1]) > 50
    assert pair.texts[1] == written((1,) * 20, len(pair.texts[1]))


def test_a_frozen_draft_costs_a_few_deadlines_and_then_nothing():
    pair = Pair()
    pair.open(1)
    for _ in range(5):
        pair.step()
    pair.is_frozen = True
    waits = []
    for _ in range(30):
        before = pair.now
        pair.step()
        waits.append(pair.now - before > 0.032)
    assert sum(waits) <= 4
    assert pair.target.state().health == ProposerHealth.DEGRADED
    assert pair.target.counters.breaker_openings >= 1
    assert len(pair.to_draft) < 25


def test_a_draft_that_freezes_right_after_reading_the_prompt_never_holds_up_the_target_for_more_than_a_few_steps():
    pair = Pair()
    pair.open(1)
    pair.exchange()
    pair.is_frozen = True
    waits = []
    for _ in range(12):
        before = pair.now
        pair.step()
        waits.append(pair.now - before)
    assert max(waits) < 10 * 0.03, "the step itself, eight more, and the hops"
    assert pair.target.state().health == ProposerHealth.DEGRADED


def test_a_draft_that_wakes_up_is_taken_back_without_a_new_session():
    pair = Pair(engine=ToyEngine(model=next_token))
    pair.open(1)
    for _ in range(5):
        pair.step()
    pair.is_frozen = True
    for _ in range(10):
        pair.step()
    pair.is_frozen = False
    run_well(pair)
    assert pair.target.state().health == ProposerHealth.HEALTHY
    assert pair.accepted[1][-1] == 4


@pytest.mark.parametrize("draft_ahead", [False, True])
def test_no_token_is_run_twice_while_everything_is_accepted(draft_ahead):
    pair = Pair(draft_ahead=draft_ahead, engine=ToyEngine(model=next_token))
    pair.open(1)
    for _ in range(10):
        pair.step()
    assert pair.accepted[1][2:] == [4] * 8
    if not draft_ahead:
        # The prompt in one pass that already samples; then 4 passes a round, the first of which fills the gap.
        assert pair.engine.passes == 4 * 10
