"""Generation words <-> the frames of the token stream between router and target worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fleet.errors import BadRequest
from fleet.generation import (
    FailureKind,
    FinishReason,
    GenerationRequest,
    Resume,
    Round,
    SamplingParams,
    StepOutput,
    StreamFailed,
    TokenChunk,
    TokenLogprob,
)
from fleet.tokens_v1 import tokens_pb2 as pb


def start_frame(request: GenerationRequest) -> pb.RouterFrame:
    start = pb.Start(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=sampling_to_wire(request.sampling),
        choice_index=request.choice_index,
        num_speculative_tokens=request.num_speculative_tokens,
    )
    if request.resume is not None:
        start.resume.CopyFrom(pb.Resume(token_ids=request.resume.token_ids, text_length=request.resume.text_length))
    return pb.RouterFrame(start=start)


def cancel_frame(request_ids: Iterable[str]) -> pb.RouterFrame:
    return pb.RouterFrame(cancel=pb.Cancel(request_ids=request_ids))


def request_from(start: pb.Start) -> GenerationRequest:
    """The request in a Start frame, or BadRequest where the frame is unusable."""
    if not start.request_id or not start.prompt_token_ids:
        raise BadRequest("a request needs an id and at least one prompt token")
    resume = None
    if start.HasField("resume"):
        resume = Resume(tuple(start.resume.token_ids), start.resume.text_length)
    return GenerationRequest(
        request_id=start.request_id,
        prompt_token_ids=tuple(start.prompt_token_ids),
        sampling=sampling_from_wire(start.sampling),
        choice_index=start.choice_index,
        num_speculative_tokens=start.num_speculative_tokens if start.HasField("num_speculative_tokens") else None,
        resume=resume,
    )


def step_frame(outputs: Iterable[StepOutput]) -> pb.StepFrame:
    """One message for everything one engine step has for one router."""
    frame = pb.StepFrame()
    for output in outputs:
        if isinstance(output, StreamFailed):
            frame.failed.add(request_id=output.request_id, kind=output.kind.value, message=output.message)
        else:
            _add_chunk(frame, output)
    return frame


def outputs_from(frame: pb.StepFrame) -> Iterator[StepOutput]:
    for chunk in frame.chunks:
        yield _chunk_from(chunk)
    for failed in frame.failed:
        yield StreamFailed(failed.request_id, FailureKind(failed.kind), failed.message)


def _add_chunk(frame: pb.StepFrame, chunk: TokenChunk) -> None:
    wire = frame.chunks.add(
        request_id=chunk.request_id,
        token_ids=chunk.token_ids,
        text=chunk.text,
        logprobs=[_logprob_to_wire(item) for item in chunk.logprobs],
        finish=chunk.finish.value if chunk.finish else "",
        queue_seconds=chunk.queue_seconds,
        prompt_logprobs=[_logprob_to_wire(item) for item in chunk.prompt_logprobs],
    )
    if isinstance(chunk.stop_reason, str):
        wire.stop_string = chunk.stop_reason
    elif chunk.stop_reason is not None:
        wire.stop_token_id = chunk.stop_reason
    if chunk.round is not None:
        wire.round.drafted = chunk.round.drafted
        wire.round.accepted = chunk.round.accepted
        wire.round.late = chunk.round.late


def _chunk_from(wire: pb.Chunk) -> TokenChunk:
    stop_reason: int | str | None = None
    match wire.WhichOneof("stop_reason"):
        case "stop_token_id":
            stop_reason = wire.stop_token_id
        case "stop_string":
            stop_reason = wire.stop_string
    return TokenChunk(
        request_id=wire.request_id,
        token_ids=tuple(wire.token_ids),
        text=wire.text,
        logprobs=tuple(_logprob_from(item) for item in wire.logprobs if not item.absent),
        finish=FinishReason(wire.finish) if wire.finish else None,
        stop_reason=stop_reason,
        round=Round(wire.round.drafted, wire.round.accepted, wire.round.late) if wire.HasField("round") else None,
        queue_seconds=wire.queue_seconds if wire.HasField("queue_seconds") else None,
        prompt_logprobs=tuple(None if item.absent else _logprob_from(item) for item in wire.prompt_logprobs),
    )


def _logprob_to_wire(item: TokenLogprob | None) -> pb.Logprob:
    if item is None:
        return pb.Logprob(absent=True)
    return pb.Logprob(
        token_id=item.token_id,
        logprob=item.logprob,
        top_token_ids=[token for token, _ in item.top],
        top_logprobs=[value for _, value in item.top],
    )


def _logprob_from(wire: pb.Logprob) -> TokenLogprob:
    top = tuple(zip(wire.top_token_ids, wire.top_logprobs, strict=True))
    return TokenLogprob(wire.token_id, wire.logprob, top)


def sampling_to_wire(params: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        seed=params.seed,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias_token_ids=[token for token, _ in params.logit_bias],
        biases=[bias for _, bias in params.logit_bias],
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        include_stop_in_output=params.include_stop_in_output,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )


def sampling_from_wire(wire: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        seed=wire.seed,
        max_tokens=wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=tuple(zip(wire.bias_token_ids, wire.biases, strict=True)),
        min_tokens=wire.min_tokens,
        ignore_eos=wire.ignore_eos,
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
        include_stop_in_output=wire.include_stop_in_output,
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        prompt_logprobs=wire.prompt_logprobs,
    )
