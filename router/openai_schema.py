"""What may clients send? The bodies of the OpenAI API and of vLLM's additions, with bounds on every field."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from fleet.errors import BadRequest

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_BIASES = 1024

FIELD_NAME = re.compile(r"[a-z_]+")
TYPE_TAGS = frozenset({"str", "int", "float", "bool"})
"""Parts of a pydantic error location that name a member of a union, not a field."""

Body = TypeVar("Body", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
"""As every list without a bound of its own it stops at the first mistake: millions of them would fill the memory."""
StopString = Annotated[str, Field(min_length=1, max_length=1000)]


def _few(biases: object) -> object:
    """Refuse a large mapping before its entries are looked at; a bound of the field is checked only afterwards."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise PydanticCustomError("too_long", "at most {limit} entries", {"limit": MAX_BIASES})
    return biases


Biases = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]], BeforeValidator(_few)]

_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": _OFF,
    "audio": _OFF,
    "bad_words": _OFF,
    "chat_template": _OFF,
    "chat_template_kwargs": _OFF,
    "documents": _OFF,
    "function_call": (*_OFF, "none", "auto"),
    "functions": _OFF,
    "guided_choice": _OFF,
    "guided_grammar": _OFF,
    "guided_json": _OFF,
    "guided_regex": _OFF,
    "logits_processors": _OFF,
    "modalities": (*_OFF, ["text"]),
    "prompt_embeds": _OFF,
    "prompt_logprobs": (None,),
    "response_format": (*_OFF, {"type": "text"}),
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (None, True),
    "structured_outputs": _OFF,
    "suffix": _OFF,
    "tool_choice": (*_OFF, "none", "auto"),
    "tools": _OFF,
    "truncate_prompt_tokens": (None,),
    "use_beam_search": _OFF,
    "web_search_options": _OFF,
}
"""Features that would change the answer, and the values that leave them off. Any other unknown field is ignored."""


class Lenient(BaseModel):
    """No type is coerced; unknown fields are kept apart, to be ignored or refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(Lenient):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SpeculationOptions(Lenient):
    """Ours: how far this request may speculate."""

    num_speculative_tokens: Annotated[int, Field(ge=0, le=32)] | None = None


class TextPart(Lenient):
    type: Literal["text"]
    text: str


class Message(Lenient):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class GenerationBody(Lenient):
    """The fields that chat and text completions have in common; null always means unset."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS * 8)] | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: Biases | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = None
    speculation: SpeculationOptions | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: Literal[False] | None = None


Prompt = (
    str
    | Annotated[TokenIds, Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[list[Annotated[TokenIds, Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)]
)


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(Lenient):
    """POST /tokenize: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(Lenient):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


def parse(schema: type[Body], raw: bytes) -> Body:
    """A request body, or BadRequest that names the first wrong field in `param`."""
    try:
        body = schema.model_validate_json(raw)
    except ValidationError as error:
        raise _explained(error) from None
    _refuse_unsupported(body)
    return body


def _refuse_unsupported(body: BaseModel) -> None:
    for name, value in (body.model_extra or {}).items():
        allowed = _UNSUPPORTED.get(name)
        if allowed is not None and not any(type(value) is type(off) and value == off for off in allowed):
            raise BadRequest(f"'{name}' is not supported by this server", param=name, code="unsupported_parameter")


def _explained(error: ValidationError) -> BadRequest:
    """One line about the first wrong field; a union's members are listed as alternatives unless one is too long."""
    details: list[Any] = error.errors(include_url=False, include_context=False, include_input=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if not first["loc"]:
        return BadRequest("the body must be a JSON object")
    param = str(first["loc"][0])
    problems: dict[str, None] = {}
    of_field = [detail for detail in details if detail["loc"][:1] == first["loc"][:1]]
    for detail in [detail for detail in of_field if detail["type"] == "too_long"] or of_field:
        problems[f"{_where(detail['loc'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"] = None
    return BadRequest(" or ".join(list(problems)[:4]), param=param)


def _where(location: tuple[int | str, ...]) -> str:
    parts = [
        part for part in location if isinstance(part, int) or (FIELD_NAME.fullmatch(part) and part not in TYPE_TAGS)
    ]
    return ".".join(map(str, parts)) or str(location[0])
