from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import ProtocolViolation
from fleet.generation import SamplingParams
from replicas.speculation.messages import (
    Closing,
    Exhausted,
    Hello,
    Opening,
    Proposal,
    Refused,
    Resync,
    SequenceKey,
    SequenceVerdict,
    Welcome,
)
from replicas.speculation.rejection import Sparse
from replicas.verify_rpc import verify_pb2 as pb
from replicas.verify_rpc.codec import draft_frame, draft_message_from, target_frame, target_message_from

small = st.integers(0, 2**31)
ids = st.integers(0, 2**63)
tokens = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
seconds = st.floats(0, 10)
hellos = st.builds(Hello, small, st.text(), small, st.text(), st.text(), small, small, st.booleans())
proposals = st.builds(Proposal, ids, ids, small, tokens, seconds, st.booleans())
weights = st.floats(0, 1, width=32)
supports = st.lists(st.tuples(small, weights), max_size=4).map(
    lambda pairs: Sparse(tuple(token for token, _ in pairs), tuple(weight for _, weight in pairs))
)
drawn_tokens = st.lists(st.tuples(small, supports), max_size=4)
judged_proposals = st.builds(
    lambda item, drawn: replace(
        item, token_ids=tuple(token for token, _ in drawn), distributions=tuple(q for _, q in drawn)
    ),
    proposals,
    drawn_tokens,
)
keys = st.builds(SequenceKey, ids, ids)
verdicts = st.builds(SequenceVerdict, ids, ids, small, small, tokens, small)
sampling = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    max_tokens=small,
    temperature=seconds,
    stop=st.lists(st.text(), max_size=2).map(tuple),
    logit_bias=st.lists(st.tuples(small, seconds), max_size=2).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
openings = st.builds(Opening, ids, ids, tokens, small, sampling, small, small)


def tuples(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=4).map(tuple)


@settings(deadline=None)
@given(hellos | tuples(proposals) | tuples(judged_proposals) | st.builds(Resync, tuples(keys)) | st.builds(Exhausted))
def test_what_a_draft_says_arrives_as_it_was_said(message):
    wire = draft_frame(message).SerializeToString()
    assert draft_message_from(pb.DraftFrame.FromString(wire)) == message


@settings(deadline=None)
@given(
    st.builds(Welcome, small, st.text(), st.booleans(), st.booleans())
    | st.builds(Refused, st.text())
    | openings
    | tuples(verdicts)
    | st.builds(Closing, st.lists(ids, max_size=4).map(tuple), st.text())
)
def test_what_a_target_says_arrives_as_it_was_said(message):
    wire = target_frame(message).SerializeToString()
    assert target_message_from(pb.TargetFrame.FromString(wire)) == message


def test_frames_without_content_break_the_protocol():
    with pytest.raises(ProtocolViolation):
        draft_message_from(pb.DraftFrame())
    with pytest.raises(ProtocolViolation):
        target_message_from(pb.TargetFrame())


def judged_frame(**supports: list[int] | list[float]) -> pb.Proposals:
    """One drafted token, and whatever it is said to be drawn from."""
    return pb.Proposals(
        sequence_ids=[1],
        epochs=[1],
        base_lengths=[3],
        token_counts=[1],
        token_ids=[3],
        draft_seconds=[0],
        were_ready=[False],
        **supports,
    )


def test_a_peer_from_before_distributions_is_understood_as_one_that_has_none():
    old = pb.Hello(protocol_version=1, tokenizer_hash="hash", vocab_size=3, model="m", max_model_len=9)
    hello = draft_message_from(pb.DraftFrame(hello=old))
    assert isinstance(hello, Hello)
    assert not hello.names_distributions
    welcome = target_message_from(pb.TargetFrame(welcome=pb.Welcome(protocol_version=1, model="m")))
    assert welcome == Welcome(1, "m", draft_ahead=False, wants_distributions=False)


@pytest.mark.parametrize(
    "proposals",
    [
        pb.Proposals(sequence_ids=[1, 2], epochs=[1]),
        pb.Proposals(
            sequence_ids=[1],
            epochs=[1],
            base_lengths=[3],
            token_counts=[5],
            token_ids=[1],
            draft_seconds=[0],
            were_ready=[False],
        ),
        judged_frame(support_counts=[1], support_ids=[3], support_weights=[]),
        judged_frame(support_counts=[2], support_ids=[3], support_weights=[1.0]),
        judged_frame(support_counts=[1, 1], support_ids=[3, 4], support_weights=[1.0, 1.0]),
    ],
)
def test_columns_that_do_not_hang_together_break_the_protocol(proposals):
    with pytest.raises(ProtocolViolation):
        draft_message_from(pb.DraftFrame(proposals=proposals))
    with pytest.raises(ProtocolViolation):
        target_message_from(pb.TargetFrame(verdicts=pb.Verdicts(sequence_ids=[1, 2], epochs=[1])))
