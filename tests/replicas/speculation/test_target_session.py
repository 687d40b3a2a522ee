"""What the target believes, asks and tells, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.errors import ProtocolViolation
from fleet.generation import SamplingParams
from replicas.speculation.messages import (
    PROTOCOL_VERSION,
    Closing,
    Hello,
    Opening,
    Proposal,
    Refused,
    Resync,
    SequenceKey,
    SequenceVerdict,
    Welcome,
)
from replicas.speculation.pairing import Identity, find_mismatch
from replicas.speculation.proposer import ProposerHealth, Want
from replicas.speculation.rejection import Sparse
from replicas.speculation.target_session import HELD_TOKENS, TargetSession, TargetSettings

IDENTITY = Identity("target", "hash", 100, 4096)
HELLO = Hello(PROTOCOL_VERSION, "hash", 100, "draft", "", 4096, 8)
OPENING = Opening(1, 5, (1, 2, 3), 2, SamplingParams(seed=0, max_tokens=9), 0, 4)
WANT = Want(1, 5, 3, 4)


def session_with(hello: Hello = HELLO) -> TargetSession:
    session = TargetSession(TargetSettings(IDENTITY, 0.02, 1.0))
    assert isinstance(session.greet(hello, 0.0), Welcome)
    return session


def opened(session: TargetSession, opening: Opening = OPENING) -> Opening:
    (told,) = session.open(opening, 0.0)
    assert isinstance(told, Opening)
    return told


def proposal(told: Opening, *token_ids: int) -> Proposal:
    return Proposal(told.sequence_id, told.epoch, len(told.token_ids), token_ids)


def test_a_proposal_reaches_the_engine_under_the_engines_own_epoch_and_no_longer_than_wanted():
    session = session_with()
    session.receive((proposal(opened(session), 7, 8, 9),), 0.01)
    assert session.collect([replace(WANT, max_tokens=2)], 0.01) == {1: Proposal(1, 5, 3, (7, 8))}


def test_a_sequence_whose_prompt_is_still_being_read_holds_nobody_up_and_is_not_late():
    session = session_with()
    opened(session)
    assert session.wait_until([WANT], 0.0) is None
    assert session.collect([WANT], 0.0) == {1: Proposal(1, 5, 3, ())}
    assert session.counters.late == 0


def test_a_proposal_that_is_missed_after_that_is_late_and_absent():
    session = session_with()
    session.receive((proposal(opened(session), 7),), 0.01)
    session.settle([SequenceVerdict(1, 5, 3, 1, (7, 8), 4)], 0.02)
    want = replace(WANT, base_length=5)
    assert session.wait_until([want], 0.03) == pytest.approx(1.02)
    assert session.wait_until([want], 1.03) is None
    assert session.collect([want], 1.03) == {}
    assert session.counters.late == 1


def test_what_is_late_is_a_part_of_the_rounds_of_all_sequences():
    session = session_with()
    first = opened(session)
    second = opened(session, replace(OPENING, sequence_id=2))
    session.receive((proposal(first, 7), proposal(second, 7)), 0.01)
    wants = [WANT, replace(WANT, sequence_id=2)]
    assert set(session.collect(wants, 0.01)) == {1, 2}
    session.settle([SequenceVerdict(number, 5, 3, 1, (7, 8), 4) for number in (1, 2)], 0.02)
    session.receive((replace(proposal(first, 9), base_length=5),), 0.03)
    wants = [replace(want, base_length=5) for want in wants]
    assert set(session.collect(wants, 1.03)) == {1}
    assert (session.counters.rounds, session.counters.late) == (4, 1)


def test_the_wait_ends_at_what_rounds_usually_take():
    session = session_with()
    told = opened(session)
    session.receive((proposal(told, 7),), 0.01)
    now, length = 0.01, 3
    for _ in range(60):
        session.settle([SequenceVerdict(1, 5, length, 0, (7,), 4)], now)
        length += 1
        now += 0.05
        session.receive((Proposal(1, told.epoch, length, (7,), draft_seconds=0.04),), now)
    session.settle([SequenceVerdict(1, 5, length, 0, (7,), 4)], now)
    until = session.wait_until([replace(WANT, base_length=length + 1)], now)
    assert until is not None
    assert 0.05 <= until - now < 0.06
    assert session.state().draft_seconds == pytest.approx(0.04, rel=0.01)
    assert session.state().wire_seconds == pytest.approx(0.01, rel=0.01)


def test_nothing_is_asked_beyond_the_drafts_own_limits():
    session = session_with(replace(HELLO, max_draft_tokens=2, max_model_len=4))
    assert opened(session).draft_length == 1
    assert opened(session, replace(OPENING, sequence_id=2, token_ids=(1, 2))).draft_length == 2
    assert opened(session, replace(OPENING, sequence_id=3, token_ids=(1,) * 9)).draft_length == 0


@pytest.mark.parametrize(
    "lie",
    [
        lambda p: replace(p, token_ids=(100,)),
        lambda p: replace(p, token_ids=(1,) * 5),
        lambda p: replace(p, base_length=4),
        lambda p: replace(p, epoch=p.epoch + 1),
    ],
)
def test_a_wrong_item_ends_the_drafting_for_that_sequence_for_good(lie):
    session = session_with()
    told = opened(session)
    session.receive((lie(proposal(told, 7)),), 0.0)
    session.receive((proposal(told, 7),), 0.0)
    assert session.collect([WANT], 0.0) == {}
    assert session.settle([SequenceVerdict(1, 5, 3, 0, (7,), 4)], 0.0) == [Closing((1,), "quarantined or lost")]
    assert session.collect([replace(WANT, base_length=4)], 0.0) == {1: Proposal(1, 5, 4, ())}, "owed no more"
    assert session.settle([SequenceVerdict(1, 5, 4, 0, (7,), 4)], 0.0) == []
    assert session.counters.wrong == 1


def judging_session(*, were_drawn: bool = True) -> TargetSession:
    identity = replace(IDENTITY, wants_distributions=True)
    session = TargetSession(TargetSettings(identity, 0.02, 1.0, was_drawn=lambda opening, proposal: were_drawn))
    welcome = session.greet(replace(HELLO, names_distributions=True), 0.0)
    assert isinstance(welcome, Welcome)
    assert welcome.wants_distributions
    return session


def judged(told: Opening, *token_ids: int) -> Proposal:
    return replace(proposal(told, *token_ids), distributions=tuple(map(Sparse.certain, token_ids)))


def test_a_judged_proposal_brings_its_distributions_as_far_as_it_is_wanted():
    session = judging_session()
    session.receive((judged(opened(session), 7, 8, 9),), 0.01)
    (collected,) = session.collect([replace(WANT, max_tokens=2)], 0.01).values()
    assert collected.token_ids == (7, 8)
    assert collected.distributions == (Sparse.certain(7), Sparse.certain(8))


def test_where_acceptance_is_by_rejection_an_empty_proposal_needs_no_distribution():
    session = judging_session()
    session.receive((judged(opened(session)),), 0.01)
    assert session.collect([WANT], 0.01) == {1: Proposal(1, 5, 3, ())}
    assert session.counters.wrong == 0


@pytest.mark.parametrize(
    ("session", "is_judged"),
    [(judging_session(), False), (judging_session(were_drawn=False), True), (session_with(), True)],
    ids=["unnamed", "not drawn from them", "not asked for"],
)
def test_distributions_that_do_not_fit_the_rule_end_the_drafting(session, is_judged):
    told = opened(session)
    session.receive((judged(told, 7) if is_judged else proposal(told, 7),), 0.0)
    assert session.collect([WANT], 0.0) == {}
    assert session.counters.wrong == 1


def test_stale_and_repeated_items_are_counted_and_harmless():
    session = session_with()
    told = opened(session)
    first, second = proposal(told, 7), proposal(told, 8)
    session.receive((replace(first, base_length=2), replace(first, epoch=0), replace(first, sequence_id=9)), 0.0)
    session.receive((first, second), 0.0)
    assert session.collect([WANT], 0.0)[1].token_ids == (7,)
    assert (session.counters.stale, session.counters.wrong) == (4, 0)


def test_an_id_used_again_is_a_new_sequence_and_answers_to_the_old_one_are_stale():
    session = session_with()
    told = opened(session)
    assert session.close(Closing((1,), "done")) == [Closing((1,), "done")]
    again = opened(session)
    assert again.epoch > told.epoch
    session.receive((proposal(told, 7),), 0.0)
    assert session.collect([WANT], 0.0)[1].token_ids == ()


def test_a_draft_that_lost_the_thread_is_told_everything_with_the_next_verdict():
    session = session_with()
    told = opened(session)
    session.receive(Resync((SequenceKey(1, told.epoch), SequenceKey(1, told.epoch), SequenceKey(8, 1))), 0.0)
    (reopened,) = session.settle([SequenceVerdict(1, 5, 3, 0, (7,), 4)], 0.0)
    assert isinstance(reopened, Opening)
    assert reopened.token_ids == (1, 2, 3, 7)
    assert reopened.prompt_length == 2
    assert reopened.epoch > told.epoch
    assert session.counters.reopened == 1


def test_without_a_draft_nothing_is_said_and_nothing_is_waited_for():
    session = TargetSession(TargetSettings(IDENTITY, 0.02, 1.0))
    assert session.state().health == ProposerHealth.LOST
    assert session.open(OPENING, 0.0) == []
    assert session.wait_until([WANT], 0.0) is None
    assert session.collect([WANT], 0.0) == {}
    assert session.settle([SequenceVerdict(1, 5, 3, 0, (7,), 4)], 0.0) == []
    session.greet(HELLO, 1.0)
    (told,) = session.settle([SequenceVerdict(1, 5, 4, 0, (8,), 4)], 1.0)
    assert isinstance(told, Opening)
    assert told.token_ids == (1, 2, 3, 7, 8)


def test_what_the_engine_repeats_or_mixes_up_changes_nothing():
    session = session_with()
    told = opened(session)
    assert session.open(OPENING, 0.0) == []
    assert session.settle([SequenceVerdict(1, 4, 3, 0, (7,), 4), SequenceVerdict(1, 5, 9, 0, (7,), 4)], 0.0) == []
    session.receive((proposal(told, 7),), 0.0)
    assert session.collect([replace(WANT, epoch=4), replace(WANT, sequence_id=3)], 0.0) == {}
    assert session.collect([WANT], 0.0)[1].token_ids == (7,)


def test_a_second_hello_breaks_the_protocol():
    with pytest.raises(ProtocolViolation):
        session_with().receive(HELLO, 0.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol_version": 99}, "speaks protocol 99"),
        ({"vocab_size": 99}, "draft has 99 tokens, target has 100"),
        ({"tokenizer_hash": "other"}, "same size but different tokens"),
        ({"max_model_len": 0}, "cannot draft"),
    ],
)
def test_a_refusal_names_what_differs(change, reason):
    session = TargetSession(TargetSettings(IDENTITY, 0.02, 1.0))
    answer = session.greet(replace(HELLO, **change), 0.0)
    assert isinstance(answer, Refused)
    assert reason in answer.reason
    assert session.state().health == ProposerHealth.LOST


def test_a_draft_that_cannot_name_distributions_is_refused_only_where_they_are_needed():
    reason = find_mismatch(replace(IDENTITY, wants_distributions=True), HELLO)
    assert reason is not None
    assert "acceptance 'rejection'" in reason
    assert find_mismatch(IDENTITY, HELLO) is None


def test_a_shorter_context_of_the_draft_is_no_mismatch():
    assert find_mismatch(IDENTITY, replace(HELLO, max_model_len=16)) is None


def test_a_draft_that_freezes_after_its_first_answer_holds_up_a_few_steps_only():
    session = session_with()
    session.receive((proposal(opened(session), 7),), 0.01)
    session.collect([WANT], 0.01)
    session.settle([SequenceVerdict(1, 5, 3, 1, (7, 8), 4)], 0.04)
    until = session.wait_until([replace(WANT, base_length=5)], 0.05)
    assert until == pytest.approx(0.04 + 8 * 0.03)


def test_a_prompt_in_the_targets_first_step_does_not_lengthen_the_wait_for_a_draft_that_freezes():
    session = session_with()
    told = opened(session)
    length, now = 3, 0.0
    for step_seconds in (0.4, 0.03, 0.4, 0.03):
        session.collect([replace(WANT, base_length=length)], now)
        now += step_seconds
        session.settle([SequenceVerdict(1, 5, length, 0, (7,), 4)], now)
        length += 1
    session.receive((Proposal(1, told.epoch, length, (7,)),), now)
    session.collect([replace(WANT, base_length=length)], now)
    session.settle([SequenceVerdict(1, 5, length, 0, (7,), 4)], now + 0.03)
    until = session.wait_until([replace(WANT, base_length=length + 1)], now + 0.03)
    assert until == pytest.approx(now + 0.03 + 8 * 0.03)


def test_while_nothing_is_asked_tokens_are_told_together():
    session = session_with()
    told = opened(session)
    base, quiet = 3, (7,)
    [(off,)] = session.settle([SequenceVerdict(1, 5, base, 0, quiet, 0)], 0.1)
    assert (off.base_length, off.committed, off.next_draft_length) == (3, quiet, 0)
    for step in range(1, 6):
        assert session.settle([SequenceVerdict(1, 5, base + step, 0, quiet, 0)], 0.1) == []
    [(verdict,)] = session.settle([SequenceVerdict(1, 5, base + 6, 0, (8, 9), 2)], 0.2)
    assert verdict == SequenceVerdict(1, told.epoch, base + 1, 0, (*quiet * 5, 8, 9), 2)


def test_tokens_are_told_often_enough_to_keep_a_lease():
    session = session_with()
    opened(session, replace(OPENING, draft_length=0))
    silent = 0
    while not (messages := session.settle([SequenceVerdict(1, 5, 3 + silent, 0, (7,), 0)], 0.1)):
        silent += 1
    [(verdict,)] = messages
    assert (silent + 1, verdict.committed) == (HELD_TOKENS, (7,) * HELD_TOKENS)
