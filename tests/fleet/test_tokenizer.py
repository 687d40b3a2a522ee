"""Tokenizers on disk, real or tiny: what they load, how they decode, what makes two of them equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from fleet.errors import BadRequest, ConfigError
from fleet.tokenizer import IncrementalDecoder, Tokenizer
from tests.tiny import SPECIAL_TOKENS, VOCABULARY, tiny_tokenizer_folder

BOS, IM_START, IM_END = 0, 1, 2
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁hi", "é", "▁▁"]


def sentence_piece_folder(folder: Path) -> Path:
    """A Llama-2-like tokenizer: metaspace, bytes for unknown characters, the first space dropped, bos in front."""
    raw = RawTokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(PIECES)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    raw.add_special_tokens([AddedToken(token, special=True) for token in PIECES[:3]])
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def byte_level(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def sentence_piece_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_piece_folder(tmp_path_factory.mktemp("sentence_piece"))


@pytest.fixture(scope="module")
def sentence_piece(sentence_piece_files: Path) -> Tokenizer:
    return Tokenizer.load(sentence_piece_files)


def piecewise(tokenizer: Tokenizer, token_ids: list[int], prompt_tail: tuple[int, ...] = ()) -> str:
    decoder = IncrementalDecoder(tokenizer, prompt_tail)
    return "".join(map(decoder.feed, token_ids)) + decoder.flush()


def test_it_knows_its_size_its_specials_and_its_template(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == VOCABULARY
    assert byte_level.eos_token_ids == {IM_END}
    assert byte_level.bos_token_id == IM_START
    assert byte_level.has_chat_template


@given(st.text(max_size=40))
def test_any_text_survives_a_round_trip(byte_level: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30), st.booleans())
def test_decoding_equals_hugging_faces_for_any_tokens(
    folder: Path, byte_level: Tokenizer, token_ids: list[int], skip: bool
) -> None:
    reference = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    assert byte_level.decode(token_ids, skip_special_tokens=skip) == reference.decode(
        token_ids, skip_special_tokens=skip
    )


@given(st.lists(st.integers(0, VOCABULARY + 5), max_size=40))
def test_token_by_token_equals_all_at_once(byte_level: Tokenizer, token_ids: list[int]) -> None:
    assert piecewise(byte_level, token_ids) == byte_level.decode(token_ids)


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=40))
def test_token_by_token_equals_all_at_once_with_byte_fallback(sentence_piece: Tokenizer, token_ids: list[int]) -> None:
    assert piecewise(sentence_piece, token_ids) == sentence_piece.decode(token_ids)


@pytest.mark.parametrize("text", ["hi hi", " hi", "  hi", "é🙂 hi 東京", ""])
def test_sentence_pieces_decode_as_hugging_face_does(sentence_piece_files: Path, text: str) -> None:
    reference = RawTokenizer.from_file(str(sentence_piece_files / "tokenizer.json"))
    token_ids = reference.encode(text).ids
    assert Tokenizer.load(sentence_piece_files).decode(token_ids) == reference.decode(token_ids)


def test_a_character_in_several_tokens_appears_when_it_is_complete(byte_level: Tokenizer) -> None:
    decoder = IncrementalDecoder(byte_level)
    token_ids = byte_level.encode("😀")
    assert len(token_ids) > 1
    pieces = [decoder.feed(token_id) for token_id in token_ids]
    assert pieces == [""] * (len(token_ids) - 1) + ["😀"]
    assert decoder.flush() == ""


def test_an_unfinished_character_is_shown_as_such_at_the_end(byte_level: Tokenizer) -> None:
    decoder = IncrementalDecoder(byte_level)
    assert decoder.feed(byte_level.encode("😀")[0]) == ""
    assert decoder.flush() == "�"


def test_the_output_may_finish_a_character_that_the_prompt_began(byte_level: Tokenizer) -> None:
    first, *rest = byte_level.encode("😀")
    assert piecewise(byte_level, rest, prompt_tail=(first,)) == "😀"


@pytest.mark.parametrize(("prompt", "expected"), [((), "hi"), ((1,), "hi"), ((1, PIECES.index("h")), " hi")])
def test_the_first_space_counts_only_after_text(
    sentence_piece: Tokenizer, prompt: tuple[int, ...], expected: str
) -> None:
    assert piecewise(sentence_piece, [PIECES.index("▁hi")], prompt) == expected


def test_a_token_of_half_a_character_has_bytes_and_a_readable_text(byte_level: Tokenizer) -> None:
    first = byte_level.encode("😀")[0]
    assert "😀".encode().startswith(byte_level.token_bytes(first))
    assert byte_level.token_text(first) == "�"
    assert byte_level.token_bytes(VOCABULARY) == b""


def test_half_a_surrogate_pair_is_the_callers_mistake(byte_level: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="not valid Unicode"):
        byte_level.encode("\ud83d")


def test_chat_is_rendered_by_the_models_template(byte_level: Tokenizer) -> None:
    token_ids = byte_level.render_chat([{"role": "user", "content": "hi"}])
    assert byte_level.decode(token_ids, skip_special_tokens=False) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert token_ids[0] == IM_START


def test_the_final_message_can_be_continued(byte_level: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    token_ids = byte_level.render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert byte_level.decode(token_ids, skip_special_tokens=False).endswith("<|im_start|>assistant\nWell")


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "hi"}], [{"role": "user", "content": [1]}]])
def test_messages_that_the_template_rejects_are_the_callers_mistake(
    byte_level: Tokenizer, messages: list[dict[str, object]]
) -> None:
    with pytest.raises(BadRequest) as caught:
        byte_level.render_chat(messages)
    assert caught.value.param == "messages"


def test_a_model_without_a_template_says_so(sentence_piece: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        sentence_piece.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_that_writes_the_bos_gets_no_second_one(tmp_path: Path) -> None:
    sentence_piece_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).count(1) == 1


def test_every_file_that_names_an_end_of_sequence_is_heard(tmp_path: Path) -> None:
    tiny_tokenizer_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 7}))
    assert Tokenizer.load(tmp_path).eos_token_ids == {IM_END, 5, 6, 7}


def test_equal_content_has_one_hash_whatever_the_padding_and_template(byte_level: Tokenizer, tmp_path: Path) -> None:
    tiny_tokenizer_folder(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content, indent=4))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    other = Tokenizer.load(tmp_path)
    assert other.content_hash == byte_level.content_hash
    assert len(other.encode("no truncation either, whatever the file says")) > 4


def test_the_same_size_with_two_tokens_exchanged_has_another_hash(byte_level: Tokenizer, tmp_path: Path) -> None:
    tiny_tokenizer_folder(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    path.write_text(json.dumps(content))
    other = Tokenizer.load(tmp_path)
    assert other.vocab_size == byte_level.vocab_size
    assert other.content_hash != byte_level.content_hash


@pytest.mark.parametrize("content", [None, "{]", '{"model": 3}'])
def test_a_folder_without_a_usable_tokenizer_is_one_clear_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    with pytest.raises(ConfigError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        Tokenizer.load(tmp_path / "nowhere")


def test_special_tokens_are_left_out_of_text_on_request(byte_level: Tokenizer) -> None:
    token_ids = byte_level.encode("a<|im_end|>b")
    assert byte_level.decode(token_ids) == "ab"
    assert byte_level.decode(token_ids, skip_special_tokens=False) == f"a{SPECIAL_TOKENS[2]}b"


@pytest.mark.parametrize("model", ["3", '{"type": "Unheard"}'])
def test_a_broken_tokenizer_file_is_one_clear_line(tmp_path: Path, model: str) -> None:
    (tmp_path / "tokenizer.json").write_text(f'{{"added_tokens": [], "model": {model}}}')
    with pytest.raises(ConfigError, match=r"no usable tokenizer in .*tokenizer\.json") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
