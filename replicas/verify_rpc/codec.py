"""The session's messages <-> the frames of the verify stream."""

from __future__ import annotations

from fleet.errors import ProtocolViolation
from fleet.token_codec import sampling_from_wire, sampling_to_wire
from replicas.speculation.messages import (
    Closing,
    DraftMessage,
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
from replicas.verify_rpc import verify_pb2 as pb


def draft_frame(message: DraftMessage) -> pb.DraftFrame:
    match message:
        case Hello():
            return pb.DraftFrame(hello=_hello_to_wire(message))
        case Resync(keys):
            items = [pb.SequenceKey(sequence_id=key.sequence_id, epoch=key.epoch) for key in keys]
            return pb.DraftFrame(resync=pb.Resync(items=items))
        case proposals:
            return pb.DraftFrame(proposals=pb.Proposals(items=[_proposal_to_wire(item) for item in proposals]))


def draft_message_from(frame: pb.DraftFrame) -> DraftMessage:
    """The message in a draft's frame; ProtocolViolation when there is none."""
    match frame.WhichOneof("frame"):
        case "hello":
            return _hello_from(frame.hello)
        case "proposals":
            return tuple(_proposal_from(item) for item in frame.proposals.items)
        case "resync":
            return Resync(tuple(SequenceKey(item.sequence_id, item.epoch) for item in frame.resync.items))
        case _:
            raise ProtocolViolation("a draft frame without content")


def target_frame(message: TargetMessage) -> pb.TargetFrame:
    match message:
        case Welcome(version, model, draft_ahead):
            welcome = pb.Welcome(protocol_version=version, model=model, draft_ahead=draft_ahead)
            return pb.TargetFrame(welcome=welcome)
        case Refused(reason):
            return pb.TargetFrame(refused=pb.Refused(reason=reason))
        case Opening():
            return pb.TargetFrame(open=_opening_to_wire(message))
        case Closing(sequence_ids, reason):
            return pb.TargetFrame(close=pb.Close(sequence_ids=sequence_ids, reason=reason))
        case verdicts:
            return pb.TargetFrame(verdicts=pb.Verdicts(items=[_verdict_to_wire(item) for item in verdicts]))


def target_message_from(frame: pb.TargetFrame) -> TargetMessage:
    """The message in a target's frame; ProtocolViolation when there is none."""
    match frame.WhichOneof("frame"):
        case "welcome":
            return Welcome(frame.welcome.protocol_version, frame.welcome.model, frame.welcome.draft_ahead)
        case "refused":
            return Refused(frame.refused.reason)
        case "open":
            return _opening_from(frame.open)
        case "verdicts":
            return tuple(_verdict_from(item) for item in frame.verdicts.items)
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
    )


def _proposal_to_wire(item: Proposal) -> pb.Proposal:
    return pb.Proposal(
        sequence_id=item.sequence_id,
        epoch=item.epoch,
        base_length=item.base_length,
        token_ids=item.token_ids,
        draft_seconds=item.draft_seconds,
        was_ready=item.was_ready,
    )


def _proposal_from(wire: pb.Proposal) -> Proposal:
    return Proposal(
        sequence_id=wire.sequence_id,
        epoch=wire.epoch,
        base_length=wire.base_length,
        token_ids=tuple(wire.token_ids),
        draft_seconds=wire.draft_seconds,
        was_ready=wire.was_ready,
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


def _verdict_to_wire(verdict: SequenceVerdict) -> pb.Verdict:
    return pb.Verdict(
        sequence_id=verdict.sequence_id,
        epoch=verdict.epoch,
        base_length=verdict.base_length,
        accepted=verdict.accepted,
        committed=verdict.committed,
        next_draft_length=verdict.next_draft_length,
    )


def _verdict_from(wire: pb.Verdict) -> SequenceVerdict:
    return SequenceVerdict(
        sequence_id=wire.sequence_id,
        epoch=wire.epoch,
        base_length=wire.base_length,
        accepted=wire.accepted,
        committed=tuple(wire.committed),
        next_draft_length=wire.next_draft_length,
    )
