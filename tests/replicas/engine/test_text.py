"""Stops, limits, held-back text and resumption, on a real tokenizer."""

from __future__ import annotations

import codecs
import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.generation import FinishReason, Resume, SamplingParams
from fleet.tokenizer import Tokenizer
from replicas.engine.text import OutputText
from tests.tiny import VOCABULARY, tiny_tokenizer_folder

EOS = 2
PLAIN = SamplingParams(seed=0, max_tokens=1000)


@dataclass(frozen=True)
class Output:
    """Everything a client gets from one run."""

    text: str
    tokens: int
    finish: FinishReason | None
    stop_reason: int | str | None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_folder(tmp_path_factory.mktemp("tiny")))


def run(
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    blocks: list[list[int]],
    *,
    prompt: tuple[int, ...] = (1,),
    max_model_len: int = 10_000,
) -> Output:
    text = OutputText(tokenizer, sampling, prompt, max_model_len)
    shown, tokens = "", 0
    for block in blocks:
        emission = text.feed(block)
        shown += emission.text
        tokens += emission.kept
        if emission.finish is not None:
            return Output(shown, tokens, emission.finish, emission.stop_reason)
        assert emission.kept == len(block)
    return Output(shown, tokens, None, None)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per byte, so that every boundary is inside something."""
    single = {tokenizer.token_bytes(token_id): token_id for token_id in range(3, 259)}
    return [single[bytes([byte])] for byte in text.encode()]


def expected(tokenizer: Tokenizer, sampling: SamplingParams, token_ids: list[int]) -> Output:
    """The obvious version, which starts over for every token and scans the whole text for every stop string."""
    before = ""
    for count in range(1, len(token_ids) + 1):
        token_id = token_ids[count - 1]
        whole = b"".join(tokenizer.token_bytes(i) for i in token_ids[:count] if not tokenizer.is_special(i))
        complete = codecs.getincrementaldecoder("utf-8")("replace").decode(whole)
        may_stop = count > sampling.min_tokens
        is_eos = token_id == EOS and not sampling.ignore_eos
        if may_stop and (is_eos or token_id in sampling.stop_token_ids):
            kept = token_ids[: count if sampling.include_stop_in_output else count - 1]
            reason = token_id if token_id in sampling.stop_token_ids else None
            return Output(tokenizer.decode(kept), count, FinishReason.STOP, reason)
        if may_stop:
            for end in range(len(before) + 1, len(complete) + 1):
                matches = [stop for stop in sampling.stop if complete[:end].endswith(stop)]
                if matches:
                    stop = max(matches, key=len)
                    shown = complete[: end if sampling.include_stop_in_output else end - len(stop)]
                    return Output(shown, count, FinishReason.STOP, stop)
        if count == sampling.max_tokens:
            return Output(tokenizer.decode(token_ids[:count]), count, FinishReason.LENGTH, None)
        before = complete
    return Output(before, len(token_ids), None, None)


few_characters = st.sampled_from(["a", "b", "ab", "ba", "aab", "é", "🙂", "aé"])
token_streams = st.lists(
    st.one_of(st.sampled_from(["a", "b", "é", "🙂", "<eos>", "<im>"]), st.integers(3, VOCABULARY - 1)), max_size=16
)
samplings = st.builds(
    SamplingParams,
    seed=st.just(0),
    max_tokens=st.integers(1, 30),
    min_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
    stop=st.lists(few_characters, max_size=3).map(tuple),
    stop_token_ids=st.sampled_from([(), (300,), (EOS,)]),
    include_stop_in_output=st.booleans(),
)


def stream_ids(tokenizer: Tokenizer, stream: list[str | int]) -> list[int]:
    named = {"<eos>": [EOS], "<im>": [1]}
    ids: list[int] = []
    for item in stream:
        ids += [item] if isinstance(item, int) else named.get(item) or tokens_of(tokenizer, item)
    return ids


@given(token_streams, samplings)
def test_it_agrees_with_the_obvious_version(
    tokenizer: Tokenizer, stream: list[str | int], sampling: SamplingParams
) -> None:
    token_ids = stream_ids(tokenizer, stream)
    found = run(tokenizer, sampling, [[token_id] for token_id in token_ids])
    wanted = expected(tokenizer, sampling, token_ids)
    assert (found.tokens, found.finish, found.stop_reason) == (wanted.tokens, wanted.finish, wanted.stop_reason)
    if wanted.finish is None:
        assert wanted.text.startswith(found.text)
        assert len(wanted.text) - len(found.text) < max((len(stop) for stop in sampling.stop), default=1)
    else:
        assert found.text == wanted.text


@given(token_streams, samplings, st.data())
def test_blocks_and_resumption_change_nothing(
    tokenizer: Tokenizer, stream: list[str | int], sampling: SamplingParams, data: st.DataObject
) -> None:
    token_ids = stream_ids(tokenizer, stream)
    undisturbed = run(tokenizer, sampling, [[token_id] for token_id in token_ids])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(token_ids)), max_size=5)) | {0, len(token_ids)})
    blocks = [token_ids[start:end] for start, end in itertools.pairwise(cuts)]
    assert run(tokenizer, sampling, blocks) == undisturbed
    moved_at = data.draw(st.integers(0, max(0, undisturbed.tokens - (undisturbed.finish is not None))))
    first = run(tokenizer, sampling, [token_ids[:moved_at]])
    lost = data.draw(st.integers(0, len(first.text)))
    second = OutputText(tokenizer, sampling, (1,), 10_000)
    owed = second.resume(Resume(tuple(token_ids[:moved_at]), len(first.text) - lost))
    rest = second.feed(token_ids[moved_at:])
    text = first.text[: len(first.text) - lost] + owed.text + rest.text
    assert Output(text, moved_at + rest.kept, rest.finish, rest.stop_reason) == undisturbed


def test_a_stop_string_may_start_in_an_earlier_step_and_end_inside_a_token(tokenizer: Tokenizer) -> None:
    there_was = tokenizer.encode(" there was")
    assert len(there_was) < len(" there was")
    text = OutputText(tokenizer, replace(PLAIN, stop=("x the",)), (1,), 1000)
    first = text.feed(tokens_of(tokenizer, "ax"))
    assert first.text == "a"
    second = text.feed([*there_was, EOS])
    assert (second.text, second.finish, second.stop_reason) == ("", FinishReason.STOP, "x the")
    assert second.kept < len(there_was) + 1


def test_text_held_for_a_stop_string_that_does_not_come_is_given_out(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer, replace(PLAIN, stop=("abc",)), (1,), 1000)
    assert text.feed(tokens_of(tokenizer, "xab")).text == "x"
    assert text.feed(tokens_of(tokenizer, "d")).text == "abd"


@pytest.mark.parametrize(("include", "shown"), [(False, "on"), (True, "on.\n")])
def test_the_stop_string_shows_only_on_request(tokenizer: Tokenizer, include: bool, shown: str) -> None:
    sampling = replace(PLAIN, stop=(".\n",), include_stop_in_output=include)
    assert run(tokenizer, sampling, [tokens_of(tokenizer, "on.\nand on")]) == Output(shown, 4, FinishReason.STOP, ".\n")


def test_the_end_of_sequence_counts_and_is_no_text(tokenizer: Tokenizer) -> None:
    output = run(tokenizer, PLAIN, [[*tokens_of(tokenizer, "ab"), EOS, *tokens_of(tokenizer, "never")]])
    assert output == Output("ab", 3, FinishReason.STOP, None)


def test_ignore_eos_goes_on_past_it(tokenizer: Tokenizer) -> None:
    token_ids = [*tokens_of(tokenizer, "a"), EOS, *tokens_of(tokenizer, "b")]
    assert run(tokenizer, replace(PLAIN, ignore_eos=True), [token_ids]) == Output("ab", 3, None, None)


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "ab")])
def test_a_stop_token_is_named_and_shown_only_on_request(tokenizer: Tokenizer, include: bool, shown: str) -> None:
    a, b = tokens_of(tokenizer, "ab")
    sampling = replace(PLAIN, stop_token_ids=(b,), include_stop_in_output=include)
    assert run(tokenizer, sampling, [[a, b, a]]) == Output(shown, 2, FinishReason.STOP, b)


def test_a_stop_string_is_preferred_to_the_limit_that_the_same_token_reaches(tokenizer: Tokenizer) -> None:
    sampling = replace(PLAIN, max_tokens=2, stop=("b",))
    assert run(tokenizer, sampling, [tokens_of(tokenizer, "abc")]) == Output("a", 2, FinishReason.STOP, "b")


def test_the_limit_cuts_a_block_and_gives_out_what_was_held(tokenizer: Tokenizer) -> None:
    sampling = replace(PLAIN, max_tokens=2, stop=("bc",))
    assert run(tokenizer, sampling, [tokens_of(tokenizer, "abc")]) == Output("ab", 2, FinishReason.LENGTH, None)


def test_the_context_limit_ends_the_output(tokenizer: Tokenizer) -> None:
    output = run(tokenizer, PLAIN, [tokens_of(tokenizer, "abcdef")], prompt=(1, 5, 6), max_model_len=7)
    assert output == Output("abcd", 4, FinishReason.LENGTH, None)


def test_nothing_but_a_limit_ends_it_before_min_tokens(tokenizer: Tokenizer) -> None:
    token_ids = [*tokens_of(tokenizer, "abab"), EOS]
    sampling = replace(PLAIN, min_tokens=3, stop=("b",))
    assert run(tokenizer, sampling, [token_ids]) == Output("aba", 4, FinishReason.STOP, "b")


def test_a_half_character_at_the_end_is_shown_as_such(tokenizer: Tokenizer) -> None:
    token_ids = tokens_of(tokenizer, "a🙂")[:3]
    assert run(tokenizer, replace(PLAIN, max_tokens=3), [token_ids]) == Output("a�", 3, FinishReason.LENGTH, None)


@example(delivered=1)
@given(delivered=st.integers(0, 2))
def test_a_replica_that_takes_over_owes_what_the_other_held_back(tokenizer: Tokenizer, delivered: int) -> None:
    text = OutputText(tokenizer, replace(PLAIN, stop=("cd",)), (1,), 1000)
    owed = text.resume(Resume(tuple(tokens_of(tokenizer, "abc")), delivered))
    assert owed.text == "ab"[delivered:]
    assert text.feed(tokens_of(tokenizer, "x")).text == "cx"
