"""From conversations to examples: the target makes up user turns, answers turn by turn, and its answers are learnt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deploy.train.corpus import Question, TokenIds
from deploy.train.prompts import Conversation, Message
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer

Ask = Callable[[Sequence[Question], str], list[TokenIds]]
"""Answers in the order of the questions; the text says what they are for."""

MADE_UP_TOKENS = 128
"""Longest user turn that is made up; what does not end by then is thrown away."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the target's answer."""

    tokens: TokenIds
    """int32 [n]: the prompt, then the answer."""
    prompt_length: int
    is_held_out: bool

    @property
    def key(self) -> str:
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are drawn."""

    temperatures: tuple[float, ...]
    answer_tokens: int
    max_prompt_tokens: int
    seed: int

    def question(self, prompt: Sequence[int], conversation: Conversation) -> Question:
        """Held-out conversations are answered greedily, so that acceptance is measured as greedy serving has it."""
        digest = conversation.digest
        chosen = self.temperatures[digest[8] % len(self.temperatures)]
        temperature = 0.0 if conversation.is_held_out else chosen
        seed = 0 if temperature == 0 else int.from_bytes(digest[9:13]) ^ self.seed
        return Question(tuple(prompt), temperature, self.answer_tokens, seed)


def make_up(tokenizer: Tokenizer, count: int, seed: int, ask: Ask) -> list[Conversation]:
    """User turns that the target itself writes behind the empty header of one (Xu et al., arXiv:2406.08464).

    More of them begin with the same ones. Raises ConfigError where the model has no chat template.
    """
    if count == 0:
        return []
    if not tokenizer.has_chat_template:
        raise ConfigError("--generate needs a target with a chat template; give --prompts")
    header = _user_header(tokenizer)
    questions = [Question(header, 1.0, MADE_UP_TOKENS, (seed << 32) + index) for index in range(count)]
    texts = [_ended_text(tokenizer, answer) for answer in ask(questions, "making up user turns")]
    return [Conversation((), (text,)) for text in texts if text]


def converse(tokenizer: Tokenizer, conversations: Sequence[Conversation], manner: Manner, ask: Ask) -> list[Example]:
    """One example per answered turn; a conversation ends where its prompt becomes too long."""
    examples: list[Example] = []
    talks: list[tuple[Conversation, list[Message]]] = [(talk, [*talk.given]) for talk in conversations]
    turn = 0
    while talks := [(talk, said) for talk, said in talks if len(talk.turns) > turn]:
        asked = [(talk, [*said, ("user", talk.turns[turn])]) for talk, said in talks]
        prompts = [_render(tokenizer, said) for _, said in asked]
        fitting = [index for index, prompt in enumerate(prompts) if len(prompt) <= manner.max_prompt_tokens]
        questions = [manner.question(prompts[index], asked[index][0]) for index in fitting]
        answers = ask(questions, f"answering turn {turn + 1}")
        talks = []
        for index, answer in zip(fitting, answers, strict=True):
            talk, said = asked[index]
            prompt = np.asarray(prompts[index], np.int32)
            examples.append(Example(np.concatenate((prompt, answer)), len(prompt), talk.is_held_out))
            talks.append((talk, [*said, ("assistant", tokenizer.decode(answer.tolist()))]))
        turn += 1
    return examples


def first_prompt_lengths(tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> list[int]:
    """Tokens of each conversation's first prompt."""
    return [len(_render(tokenizer, [*talk.given, ("user", talk.turns[0])])) for talk in conversations]


def shortened(examples: Sequence[Example], context: int) -> list[Example]:
    """Examples cut to a context; those whose answer would not begin within it are left out."""
    begun = [example for example in examples if example.prompt_length < context]
    return [replace(example, tokens=example.tokens[:context]) for example in begun]


def _render(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """The chat template's tokens; a model without one gets a single user turn as it is."""
    if not tokenizer.has_chat_template and len(messages) == 1:
        return tokenizer.encode(messages[0][1])
    return tokenizer.render_chat([{"role": role, "content": content} for role, content in messages])


def _user_header(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the template writes before a user's words: the common beginning of different conversations."""
    conversations = [_render(tokenizer, [("user", words)]) for words in ("A", "why?", "7", "é")]
    shortest = min(map(len, conversations))
    shared = next((place for place in range(shortest) if len({talk[place] for talk in conversations}) > 1), shortest)
    return tuple(conversations[0][:shared])


def _ended_text(tokenizer: Tokenizer, answer: TokenIds) -> str:
    """The user turn; empty where it did not come to an end."""
    ended = len(answer) > 0 and int(answer[-1]) in tokenizer.eos_token_ids
    return tokenizer.decode(answer.tolist()).strip() if ended else ""
