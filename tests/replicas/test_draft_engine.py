"""The draft engine follows its session's marks: rollbacks, full caches, failures, always with the target's noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import OutOfMemory
from fleet.generation import SamplingParams
from replicas.draft_engine import DraftEngine
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sampler
from replicas.speculation.draft_session import DraftLimits, DraftSession
from replicas.speculation.drafting import DraftWork
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from tests.fake_model import FakeModel

VOCABULARY = 48
LIMITS = DraftLimits(VOCABULARY, 512, 8, 64, reading_tokens=8)
SAMPLED = SamplingParams(seed=5, max_tokens=100, temperature=0.8, top_p=0.9, repetition_penalty=1.2)
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def engine_on(model: FakeModel) -> DraftEngine:
    return DraftEngine(model, Sampler(VOCABULARY, frozenset({2})))


def target_token(text: tuple[int, ...], prompt_length: int, sampling: SamplingParams = SAMPLED) -> int:
    """What the same model draws for the same text with a cache of its own."""
    logits = FakeModel().forward([Segment(0, 0, text, 1)]).logits
    draw = Draw(sampling, 0, text[:prompt_length], text[prompt_length:])
    return Sampler(VOCABULARY, frozenset({2})).sample(logits, [draw])[0].token_id


def target_tokens(text: tuple[int, ...], count: int, prompt_length: int = len(PROMPT)) -> tuple[int, ...]:
    for _ in range(count):
        text = (*text, target_token(text, prompt_length))
    return text[len(text) - count :]


def opening(sequence_id: int, token_ids: tuple[int, ...] = (*PROMPT, 7), length: int = 4) -> Opening:
    return Opening(sequence_id, sequence_id, token_ids, len(PROMPT), SAMPLED, 0, length)


def run(session: DraftSession, engine: DraftEngine) -> list[Proposal]:
    """Work until there is none; everything proposed on the way."""
    proposals: list[Proposal] = []
    while True:
        engine.release(session.take_released())
        works = session.next_work()
        result = engine.run(works)
        for sequence_id in result.refused:
            session.refuse(sequence_id)
        for work, drafted in result.done:
            session.record(work, drafted)
        proposals += [item for message in session.outgoing(0.0) if isinstance(message, tuple) for item in message]
        if not works:
            return proposals


def test_the_same_model_with_the_same_noise_proposes_what_the_target_will_draw() -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=False), engine_on(FakeModel())
    session.receive(opening(1), 0.0)
    (proposal,) = run(session, engine)
    assert proposal.token_ids == target_tokens((*PROMPT, 7), 4)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=5), st.booleans())
def test_after_any_course_of_acceptance_the_proposal_follows_the_committed_text(
    course: list[tuple[int, int]], draft_ahead: bool
) -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=draft_ahead), engine_on(FakeModel())
    session.receive(opening(1), 0.0)
    text = (*PROMPT, 7)
    drafted = run(session, engine)[0].token_ids
    for accepted, length in course:
        accepted = min(accepted, len(drafted))
        recovered = (drafted[accepted] + 1) % VOCABULARY if accepted < len(drafted) else 11
        committed = (*drafted[:accepted], recovered)
        session.receive((SequenceVerdict(1, 1, len(text), accepted, committed, length),), 0.0)
        text += committed
        proposals = run(session, engine)
        drafted = proposals[-1].token_ids if length else ()
        assert drafted == target_tokens(text, length)


def test_when_the_cache_is_full_the_newest_sequence_gives_way_and_comes_back() -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=False), engine_on(FakeModel(kv_tokens=60))
    for sequence_id in (1, 2, 3):
        session.receive(opening(sequence_id, (*PROMPT, 7, 8, 9, 10, 11)), 0.0)
    proposals = {item.sequence_id: item.token_ids for item in run(session, engine)}
    assert len(proposals[1]) == len(proposals[2]) == 4
    assert proposals[3] == ()
    text = (*PROMPT, 7, 8, 9, 10, 11)
    verdict = SequenceVerdict(3, 3, len(text), 0, (12,), 4)
    session.receive((verdict,), 0.0)
    assert run(session, engine)[0].token_ids == ()
    session.receive(Closing((1, 2, 3), "done"), 0.0)
    engine.release(session.take_released())
    assert engine.used_tokens == 0


def test_an_old_sequence_that_grows_takes_the_place_of_the_newest() -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=False), engine_on(FakeModel(kv_tokens=30))
    text = (*PROMPT, 7)
    session.receive(opening(1, text, length=1), 0.0)
    session.receive(opening(2, text, length=1), 0.0)
    assert [len(proposal.token_ids) for proposal in run(session, engine)] == [1, 1]
    committed = (1,) * 12
    session.receive((SequenceVerdict(1, 1, len(text), 0, committed, 4),), 0.0)
    (proposal,) = run(session, engine)
    assert proposal.token_ids == target_tokens((*text, *committed), 4)
    session.receive((SequenceVerdict(2, 2, len(text), 0, (5,), 4),), 0.0)
    assert run(session, engine)[0].token_ids == ()
    session.receive(Closing((1,), "done"), 0.0)
    session.receive((SequenceVerdict(2, 2, len(text) + 1, 0, (6,), 4),), 0.0)
    assert run(session, engine)[0].token_ids == target_tokens((*text, 5, 6), 4)


def test_failures_of_the_model_end_in_empty_proposals() -> None:
    model = FakeModel()
    session, engine = DraftSession(LIMITS, draft_ahead=False), engine_on(model)
    model.fails = [OutOfMemory("no more")]
    session.receive(opening(1), 0.0)
    assert run(session, engine)[0].token_ids == ()
    assert engine.used_tokens == 0
    model.poisoned = {7}
    session.receive(opening(2), 0.0)
    session.receive(opening(3, (*PROMPT, 8)), 0.0)
    proposals = {item.sequence_id: item.token_ids for item in run(session, engine)}
    assert proposals == {2: (), 3: target_tokens((*PROMPT, 8), 4)}


def test_a_long_prompt_is_read_in_chunks_that_leave_room_for_others() -> None:
    model = FakeModel()
    session, engine = DraftSession(LIMITS, draft_ahead=False), engine_on(model)
    session.receive(opening(1), 0.0)
    session.receive(opening(2, (*PROMPT, *range(40), *range(40))), 0.0)
    works = session.next_work()
    assert sum(len(work.token_ids) for work in works) <= LIMITS.max_step_tokens
    order = [item.sequence_id for item in run(session, engine)]
    assert order == [1, 2]
    assert model.largest_step <= LIMITS.max_step_tokens


def test_the_runner_up_is_another_token_from_the_same_draw() -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=True), engine_on(FakeModel())
    session.receive(opening(1), 0.0)
    work = session.next_work()[0]
    ((_, drafted),) = engine.run([work]).done
    assert drafted is not None
    assert drafted.token_id == target_token((*PROMPT, 7), len(PROMPT))
    assert drafted.runner_up not in (None, drafted.token_id)


@pytest.mark.parametrize("draft_ahead", [False, True])
def test_requests_for_logprobs_cost_the_draft_nothing(draft_ahead: bool) -> None:
    session, engine = DraftSession(LIMITS, draft_ahead=draft_ahead), engine_on(FakeModel())
    session.receive(replace(opening(1), sampling=replace(SAMPLED, logprobs=5)), 0.0)
    assert session.next_work()[0].sampling.logprobs is None
    assert run(session, engine)[0].token_ids == target_tokens((*PROMPT, 7), 4)


class Immovable(FakeModel):
    """Its cache cannot be copied for want of memory."""

    def move(self, source: int, target: int, length: int) -> None:
        raise OutOfMemory("no more")


def test_a_sequence_that_cannot_move_for_want_of_memory_loses_its_place_alone() -> None:
    engine = engine_on(Immovable())
    first, second = (
        DraftWork(
            number, 0, tuple(range(3, 43)), samples=True, wants_runner_up=False, names_distribution=False,
            sampling=SAMPLED, choice_index=0, prompt_token_ids=PROMPT, output_token_ids=(),
        )
        for number in (1, 2)
    )  # fmt: skip
    assert not engine.run([first, second]).refused
    longer = replace(first, position=40, token_ids=tuple(range(3, 43)) * 2)
    result = engine.run([longer, replace(second, position=40, token_ids=(5,))])
    assert result.refused == (1,)
    assert result.ran_out_of_memory
    assert [work.sequence_id for work, _ in result.done] == [2]
    engine.release([2])
    assert engine.used_tokens == 0
