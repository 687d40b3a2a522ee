"""What does a client's request ask the model for? API bodies -> generation words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from fleet.errors import BadRequest, NotFound
from fleet.generation import GenerationRequest, SamplingParams, TokenChunk
from router.openai_schema import MAX_PROMPTS, ChatBody, CompletionBody, GenerationBody, Message, Prompt

if TYPE_CHECKING:
    from fleet.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for text completions; a chat may fill the context."""
LEAST_TEMPERATURE = 1e-5
"""Logits divided by less than this drown any noise, and by much less overflow: such requests are greedy, as in vLLM."""


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What `/v1/models` says about the one model."""

    name: str
    root: str
    """Hub id or folder, from which clients may load the tokenizer."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    created: int
    """Seconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How the answer is to be written."""

    api: Api
    is_streamed: bool = False
    has_usage_chunk: bool = False
    has_continuous_usage: bool = False
    echoed: tuple[str, ...] = ()
    """With `echo`: the text of each prompt."""
    is_echo_only: bool = False
    """With `max_tokens: 0`: the prompts are scored, and the one token that the engine makes on the way is not shown."""

    def shown(self, chunk: TokenChunk) -> TokenChunk:
        """What the client is to see of a chunk."""
        return replace(chunk, token_ids=(), text="", logprobs=()) if self.is_echo_only else chunk


@dataclass(frozen=True, slots=True)
class Job:
    """One API request: every prompt is answered `choices_per_prompt` times."""

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    choices_per_prompt: int
    sampling: SamplingParams
    style: AnswerStyle
    num_speculative_tokens: int | None = None
    user: str | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.choices_per_prompt

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def longest_prompt(self) -> int:
        return max(map(len, self.prompts))

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        return self.prompts[choice // self.choices_per_prompt]

    def drafting_at_most(self, tokens: int | None) -> Job:
        """The job with a bound on the drafts of each round; its own lower bound stays. None is no bound."""
        bounds = [bound for bound in (self.num_speculative_tokens, tokens) if bound is not None]
        return replace(self, num_speculative_tokens=min(bounds)) if tokens is not None else self

    def generation(self, choice: int, engine_id: str) -> GenerationRequest:
        """The engine's request for one choice. Each prompt numbers its choices from 0: company changes no answer."""
        return GenerationRequest(
            request_id=engine_id,
            prompt_token_ids=self.prompt_of(choice),
            sampling=self.sampling,
            choice_index=choice % self.choices_per_prompt,
            num_speculative_tokens=self.num_speculative_tokens,
        )


@dataclass(frozen=True, slots=True)
class Intake:
    """Reads requests for one model. `draw_seed` gives a request without a seed its own."""

    tokenizer: Tokenizer
    model: ServedModel
    draw_seed: Callable[[], int]

    def chat(self, body: ChatBody, request_id: str) -> Job:
        """A chat request as a job; BadRequest or NotFound names what is wrong with it."""
        if body.top_logprobs is not None and not body.logprobs:
            raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        continues = bool(body.continue_final_message)
        adds_prompt = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        if continues and adds_prompt:
            raise BadRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        messages = plain_messages(body.messages)
        self._check_size("".join(str(message.get("content") or "") for message in messages), "messages")
        prompt = self.tokenizer.render_chat(
            messages, add_generation_prompt=adds_prompt, continue_final_message=continues
        )
        job = self._job(body, request_id, [prompt], AnswerStyle(Api.CHAT, *_streaming(body)))
        asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        top = (body.top_logprobs or 0) if body.logprobs else None
        sampling = replace(job.sampling, max_tokens=self._max_tokens(job, asked, field, None), logprobs=top)
        return replace(job, sampling=_checked(sampling))

    def completion(self, body: CompletionBody, request_id: str) -> Job:
        """A text completion request as a job; BadRequest or NotFound names what is wrong with it."""
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise BadRequest("best_of must equal n: choosing the best of several is not supported", param="best_of")
        prompts = self._prompts(body.prompt, body.add_special_tokens is not False)
        echoed = tuple(self._text_of(body.prompt, prompts)) if body.echo else ()
        if body.max_tokens == 0 and not body.echo:
            raise BadRequest("max_tokens: 0 needs echo: true", param="max_tokens")
        style = AnswerStyle(Api.COMPLETIONS, *_streaming(body), echoed=echoed, is_echo_only=body.max_tokens == 0)
        job = self._job(body, request_id, prompts, style)
        sampling = replace(
            job.sampling,
            max_tokens=self._max_tokens(
                job, 1 if style.is_echo_only else body.max_tokens, "max_tokens", DEFAULT_COMPLETION_TOKENS
            ),
            logprobs=body.logprobs,
            prompt_logprobs=bool(body.echo) and body.logprobs is not None,
        )
        return replace(job, sampling=_checked(sampling))

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise NotFound(
                f"the model '{name}' does not exist; this server has '{self.model.name}'",
                param="model",
                code="model_not_found",
            )

    def _job(self, body: GenerationBody, request_id: str, prompts: Sequence[Sequence[int]], style: AnswerStyle) -> Job:
        self.check_model(body.model)
        job = Job(
            request_id=request_id,
            prompts=tuple(map(tuple, prompts)),
            choices_per_prompt=body.n or 1,
            sampling=self._sampling(body),
            style=style,
            num_speculative_tokens=body.speculation.num_speculative_tokens if body.speculation else None,
            user=body.user,
        )
        if job.choices > MAX_PROMPTS:
            raise BadRequest(f"{job.choices} choices in one request; at most {MAX_PROMPTS}", param="n")
        room = self.model.max_model_len
        if job.longest_prompt >= room:
            raise BadRequest(
                f"the prompt has {job.longest_prompt} tokens; the context holds {room}, with at least one to answer",
                param="messages" if style.api is Api.CHAT else "prompt",
                code="context_length_exceeded",
            )
        return job

    def _max_tokens(self, job: Job, asked: int | None, field: str, default: int | None) -> int:
        room = self.model.max_model_len - job.longest_prompt
        if asked is None:
            return room if default is None else min(default, room)
        if asked > room:
            raise BadRequest(
                f"{job.longest_prompt} prompt tokens and {field} {asked} exceed the context of "
                f"{self.model.max_model_len} tokens",
                param=field,
                code="context_length_exceeded",
            )
        return asked

    def _sampling(self, body: GenerationBody) -> SamplingParams:
        """Everything but max_tokens and log-probabilities, in which the two APIs differ."""
        stop = body.stop if body.stop is not None else []
        temperature = _or(body.temperature, 1.0)
        return SamplingParams(
            # The generator takes unsigned 64-bit seeds; a negative one is its two's complement.
            seed=self.draw_seed() if body.seed is None else body.seed % 2**64,
            max_tokens=1,
            temperature=temperature if temperature >= LEAST_TEMPERATURE else 0.0,
            top_p=_or(body.top_p, 1.0),
            top_k=max(0, body.top_k or 0),
            min_p=_or(body.min_p, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            logit_bias=self._logit_bias(body.logit_bias or {}),
            min_tokens=body.min_tokens or 0,
            ignore_eos=bool(body.ignore_eos),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=self.known_tokens(body.stop_token_ids or [], "stop_token_ids"),
            include_stop_in_output=bool(body.include_stop_str_in_output),
        )

    def _logit_bias(self, biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        pairs: dict[int, float] = {}
        for key, bias in biases.items():
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < self.tokenizer.vocab_size):
                raise BadRequest(f"logit_bias: {key[:40]!r} is not a token id of this model", param="logit_bias")
            if int(key) in pairs:
                raise BadRequest(f"logit_bias: token {int(key)} is named twice, again as {key!r}", param="logit_bias")
            pairs[int(key)] = bias
        return tuple(pairs.items())

    def known_tokens(self, token_ids: Sequence[int], field: str) -> tuple[int, ...]:
        """The ids as they are; BadRequest naming the field where one is not in the vocabulary."""
        for token_id in token_ids:
            if token_id >= self.tokenizer.vocab_size:
                raise BadRequest(f"{field}: {token_id} is not a token id of this model", param=field)
        return tuple(token_ids)

    def _check_size(self, text: str, field: str) -> None:
        """Refuse what cannot fit before it is tokenized, which takes seconds of everybody's time for a huge text."""
        least = len(text) // self.tokenizer.longest_token_bytes
        if least >= self.model.max_model_len:
            raise BadRequest(
                f"the text has at least {least} tokens; the context holds {self.model.max_model_len}",
                param=field,
                code="context_length_exceeded",
            )

    def _prompts(self, prompt: Prompt, adds_special_tokens: bool) -> list[tuple[int, ...]]:
        prompts = []
        for one in _separate(prompt):
            if isinstance(one, str):
                self._check_size(one, "prompt")
            encoded = (
                self.tokenizer.encode(one, add_special_tokens=adds_special_tokens) if isinstance(one, str) else one
            )
            if not encoded:
                raise BadRequest("prompt: must have at least one token", param="prompt")
            prompts.append(self.known_tokens(encoded, "prompt"))
        return prompts

    def _text_of(self, prompt: Prompt, prompts: Sequence[Sequence[int]]) -> list[str]:
        return [
            one if isinstance(one, str) else self.tokenizer.decode(tokens)
            for one, tokens in zip(_separate(prompt), prompts, strict=True)
        ]


def plain_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as chat templates know them: plain text, and a developer's word is the system's."""
    plain: list[dict[str, object]] = []
    for index, message in enumerate(messages):
        for extra in ("tool_calls", "tool_call_id", "function_call"):
            if (message.model_extra or {}).get(extra):
                raise BadRequest(f"messages.{index}.{extra}: tools are not supported", param="messages")
        content = message.content
        if content is None:
            if message.role != "assistant":
                raise BadRequest(f"messages.{index}.content: field required", param="messages")
            content = ""
        text = content if isinstance(content, str) else "\n".join(part.text for part in content)
        role = "system" if message.role == "developer" else message.role
        named: dict[str, object] = {"name": message.name} if message.name else {}
        plain.append({"role": role, "content": text, **named})
    return plain


def _streaming(body: GenerationBody) -> tuple[bool, bool, bool]:
    """(is_streamed, has_usage_chunk, has_continuous_usage)"""
    options = body.stream_options
    if options is None:
        return bool(body.stream), False, False
    if not body.stream:
        raise BadRequest("stream_options needs stream: true", param="stream_options")
    return True, bool(options.include_usage), bool(options.include_usage and options.continuous_usage_stats)


def _checked(sampling: SamplingParams) -> SamplingParams:
    if sampling.min_tokens > sampling.max_tokens:
        raise BadRequest(
            f"min_tokens {sampling.min_tokens} is more than max_tokens {sampling.max_tokens}", param="min_tokens"
        )
    return sampling


def _separate(prompt: Prompt) -> Sequence[str | Sequence[int]]:
    """One prompt or several, as several."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [one for one in prompt if not isinstance(one, int)]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
