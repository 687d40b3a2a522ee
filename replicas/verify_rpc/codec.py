"""The session's messages <-> the frames of the verify stream."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import replace
from itertools import accumulate, islice
from typing import TypeVar

from fleet.errors import ProtocolViolation
from fleet.token_codec import sampling_from_wire, sampling_to_wire
from replicas.speculation.messages import (
    Closing,
    DraftMessage,
    Exhausted,
    Hello,
    Opening,
    Proposal,
    Refused,
    Resync,
    SequenceKey,
    SequenceVerdict,
    TargetMessage,
    Welcome,
)
from replicas.speculation.rejection import Sparse
from replicas.verify_rpc import verify_pb2 as pb

Item = TypeVar("Item")


def draft_frame(message: DraftMessage) -> pb.DraftFrame:
    match message:
        case Hello():
            return pb.DraftFrame(hello=_hello_to_wire(message))
        case Resync(keys):
            items = [pb.SequenceKey(sequence_id=key.sequence_id, epoch=key.epoch) for key in keys]
            return pb.DraftFrame(resync=pb.Resync(items=items))
        case Exhausted():
            return pb.DraftFrame(exhausted=pb.Exhausted())
        case proposals:
            return pb.DraftFrame(proposals=_proposals_to_wire(proposals))


def draft_message_from(frame: pb.DraftFrame) -> DraftMessage:
    """The message in a draft's frame; ProtocolViolation when there is none or it does not hang together."""
    match frame.WhichOneof("frame"):
        case "hello":
            return _hello_from(frame.hello)
        case "proposals":
            return _proposals_from(frame.proposals)
        case "resync":
            return Resync(tuple(SequenceKey(item.sequence_id, item.epoch) for item in frame.resync.items))
        case "exhausted":
            return Exhausted()
        case _:
            raise ProtocolViolation("a draft frame without content")


def target_frame(message: TargetMessage) -> pb.TargetFrame:
    match message:
        case Welcome():
            return pb.TargetFrame(welcome=_welcome_to_wire(message))
        case Refused(reason):
            return pb.TargetFrame(refused=pb.Refused(reason=reason))
        case Opening():
            return pb.TargetFrame(open=_opening_to_wire(message))
        case Closing(sequence_ids, reason):
            return pb.TargetFrame(close=pb.Close(sequence_ids=sequence_ids, reason=reason))
        case verdicts:
            return pb.TargetFrame(verdicts=_verdicts_to_wire(verdicts))


def target_message_from(frame: pb.TargetFrame) -> TargetMessage:
    """The message in a target's frame; ProtocolViolation when there is none or it does not hang together."""
    match frame.WhichOneof("frame"):
        case "welcome":
            return _welcome_from(frame.welcome)
        case "refused":
            return Refused(frame.refused.reason)
        case "open":
            return _opening_from(frame.open)
        case "verdicts":
            return _verdicts_from(frame.verdicts)
        case "close":
            return Closing(tuple(frame.close.sequence_ids), frame.close.reason)
        case _:
            raise ProtocolViolation("a target frame without content")


def _hello_to_wire(hello: Hello) -> pb.Hello:
    return pb.Hello(
        protocol_version=hello.protocol_version,
        tokenizer_hash=hello.tokenizer_hash,
        vocab_size=hello.vocab_size,
        model=hello.model,
        revision=hello.revision,
        max_model_len=hello.max_model_len,
        max_draft_tokens=hello.max_draft_tokens,
        names_distributions=hello.names_distributions,
    )


def _hello_from(wire: pb.Hello) -> Hello:
    return Hello(
        protocol_version=wire.protocol_version,
        tokenizer_hash=wire.tokenizer_hash,
        vocab_size=wire.vocab_size,
        model=wire.model,
        revision=wire.revision,
        max_model_len=wire.max_model_len,
        max_draft_tokens=wire.max_draft_tokens,
        names_distributions=wire.names_distributions,
    )


def _welcome_to_wire(welcome: Welcome) -> pb.Welcome:
    return pb.Welcome(
        protocol_version=welcome.protocol_version,
        model=welcome.model,
        draft_ahead=welcome.draft_ahead,
        wants_distributions=welcome.wants_distributions,
    )


def _welcome_from(wire: pb.Welcome) -> Welcome:
    return Welcome(wire.protocol_version, wire.model, wire.draft_ahead, wire.wants_distributions)


def _proposals_to_wire(proposals: tuple[Proposal, ...]) -> pb.Proposals:
    distributions = [q for item in proposals for q in item.distributions]
    return pb.Proposals(
        sequence_ids=[item.sequence_id for item in proposals],
        epochs=[item.epoch for item in proposals],
        base_lengths=[item.base_length for item in proposals],
        token_counts=[len(item.token_ids) for item in proposals],
        token_ids=[token for item in proposals for token in item.token_ids],
        draft_seconds=[item.draft_seconds for item in proposals],
        were_ready=[item.was_ready for item in proposals],
        support_counts=[len(q.token_ids) for q in distributions],
        support_ids=[token for q in distributions for token in q.token_ids],
        support_weights=[weight for q in distributions for weight in q.weights],
    )


def _proposals_from(wire: pb.Proposals) -> tuple[Proposal, ...]:
    tokens = _split(wire.token_ids, wire.token_counts)
    columns = (wire.sequence_ids, wire.epochs, wire.base_lengths, tokens, wire.draft_seconds, wire.were_ready)
    _require_even(columns)
    proposals = tuple(map(Proposal, *map(list, columns)))
    return _with_distributions(proposals, wire) if wire.support_counts else proposals


def _with_distributions(proposals: tuple[Proposal, ...], wire: pb.Proposals) -> tuple[Proposal, ...]:
    _require_even((wire.support_ids, wire.support_weights))
    _require_even((wire.support_counts, wire.token_ids))
    supports = zip(
        _split(wire.support_ids, wire.support_counts), _split(wire.support_weights, wire.support_counts), strict=True
    )
    return tuple(
        replace(item, distributions=tuple(Sparse(*support) for support in islice(supports, len(item.token_ids))))
        for item in proposals
    )


def _opening_to_wire(opening: Opening) -> pb.Open:
    return pb.Open(
        sequence_id=opening.sequence_id,
        epoch=opening.epoch,
        token_ids=opening.token_ids,
        prompt_length=opening.prompt_length,
        sampling=sampling_to_wire(opening.sampling),
        choice_index=opening.choice_index,
        draft_length=opening.draft_length,
    )


def _opening_from(wire: pb.Open) -> Opening:
    return Opening(
        sequence_id=wire.sequence_id,
        epoch=wire.epoch,
        token_ids=tuple(wire.token_ids),
        prompt_length=wire.prompt_length,
        sampling=sampling_from_wire(wire.sampling),
        choice_index=wire.choice_index,
        draft_length=wire.draft_length,
    )


def _verdicts_to_wire(verdicts: tuple[SequenceVerdict, ...]) -> pb.Verdicts:
    return pb.Verdicts(
        sequence_ids=[item.sequence_id for item in verdicts],
        epochs=[item.epoch for item in verdicts],
        base_lengths=[item.base_length for item in verdicts],
        accepted=[item.accepted for item in verdicts],
        committed_counts=[len(item.committed) for item in verdicts],
        committed=[token for item in verdicts for token in item.committed],
        next_draft_lengths=[item.next_draft_length for item in verdicts],
    )


def _verdicts_from(wire: pb.Verdicts) -> tuple[SequenceVerdict, ...]:
    committed = _split(wire.committed, wire.committed_counts)
    columns = (
        wire.sequence_ids,
        wire.epochs,
        wire.base_lengths,
        wire.accepted,
        committed,
        wire.next_draft_lengths,
    )
    _require_even(columns)
    return tuple(map(SequenceVerdict, *map(list, columns)))


def _split(items: Sequence[Item], counts: Sequence[int]) -> list[tuple[Item, ...]]:
    """What lies end to end, cut into pieces of the given lengths."""
    ends = list(accumulate(counts))
    if (ends[-1] if ends else 0) != len(items):
        raise ProtocolViolation("the counts of a frame do not add up to what they count")
    flat = tuple(items)
    return [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _require_even(columns: Sequence[Sized]) -> None:
    if len({len(column) for column in columns}) > 1:
        raise ProtocolViolation("the columns of a frame have different lengths")
