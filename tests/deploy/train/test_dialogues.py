"""From conversations to examples, with a target that answers by rote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from deploy.train.corpus import Question, TokenIds
from deploy.train.dialogues import Manner, converse, make_up, shortened
from deploy.train.prompts import Conversation
from fleet.tokenizer import Tokenizer
from tests.deploy.train.tiny_target import workplace

END = 2
MANNER = Manner((0.0, 0.7), answer_tokens=8, max_prompt_tokens=60, seed=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(workplace() / "target")


class Rote:
    """Answers every question with the same words; remembers what it was asked."""

    def __init__(self, words: list[int]) -> None:
        self.words = words
        self.asked: list[Question] = []

    def __call__(self, questions: Sequence[Question], what: str) -> list[TokenIds]:
        self.asked += questions
        return [np.asarray(self.words, np.int32) for _ in questions]


def test_an_example_is_the_templates_prompt_and_the_answer(tokenizer: Tokenizer) -> None:
    (example,) = converse(tokenizer, [Conversation((), ("Hi",))], MANNER, Rote([5, 6, END]))
    prompt = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert example.tokens.tolist() == [*prompt, 5, 6, END]
    assert example.prompt_length == len(prompt)


def test_a_later_turn_has_the_targets_own_answers_before_it(tokenizer: Tokenizer) -> None:
    words = [*tokenizer.encode("Hello"), END]
    first, second = converse(tokenizer, [Conversation((), ("Hi", "Bye"))], MANNER, Rote(words))
    said = [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]
    prompt = tokenizer.render_chat([{"role": role, "content": content} for role, content in said])
    assert second.tokens[: second.prompt_length].tolist() == prompt
    assert first.prompt_length < second.prompt_length


def test_a_conversation_ends_where_its_prompt_is_too_long(tokenizer: Tokenizer) -> None:
    rote = Rote([5, END])
    talks = [Conversation((), ("Hi", "x" * 200, "never asked")), Conversation((), ("y" * 200,))]
    assert len(converse(tokenizer, talks, MANNER, rote)) == len(rote.asked) == 1


def test_what_is_held_out_is_answered_greedily_and_the_rest_by_turns(tokenizer: Tokenizer) -> None:
    talks = [Conversation((), (f"prompt {index}",), index < 20) for index in range(60)]
    rote = Rote([5, END])
    converse(tokenizer, talks, MANNER, rote)
    assert {question.temperature for question in rote.asked[:20]} == {0.0}
    assert {question.temperature for question in rote.asked[20:]} == {0.0, 0.7}
    drawn = [question.seed for question in rote.asked if question.temperature]
    assert len(set(drawn)) == len(drawn)


def test_made_up_turns_are_asked_for_behind_an_empty_user_header(tokenizer: Tokenizer) -> None:
    rote = Rote([*tokenizer.encode("Why?"), END])
    talks = make_up(tokenizer, 3, 0, rote)
    assert [talk.turns for talk in talks] == [("Why?",)] * 3
    (header,) = {question.prompt for question in rote.asked}
    assert tokenizer.decode(header, skip_special_tokens=False) == "<|im_start|>user\n"
    assert len({question.seed for question in rote.asked}) == 3


def test_more_made_up_turns_begin_with_the_same_ones(tokenizer: Tokenizer) -> None:
    few, many = Rote([5, END]), Rote([5, END])
    make_up(tokenizer, 2, 7, few)
    make_up(tokenizer, 5, 7, many)
    assert many.asked[:2] == few.asked


def test_a_made_up_turn_that_does_not_end_is_thrown_away(tokenizer: Tokenizer) -> None:
    assert make_up(tokenizer, 1, 0, Rote(tokenizer.encode("And so on and"))) == []


def test_examples_are_cut_to_the_context_where_an_answer_begins_within_it(tokenizer: Tokenizer) -> None:
    (example,) = converse(tokenizer, [Conversation((), ("Hi",))], MANNER, Rote([5, 6, 7, END]))
    (cut,) = shortened([example], example.prompt_length + 2)
    assert cut.tokens.tolist() == example.tokens[: example.prompt_length + 2].tolist()
    assert shortened([example], example.prompt_length) == []
