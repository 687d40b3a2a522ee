"""The tokenizer of the shipped model, against Hugging Face's own decoding."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer

from fleet.config import ModelConfig
from fleet.tokenizer import IncrementalDecoder, Tokenizer
from replicas.model_store import resolve_model

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXT = "Größe, naïve, señor, 東京, москва, 🙂👩‍👩‍👧 and\n\n\tdef f(x):  return x**2  # done"


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(ModelConfig(), progress=lambda line: None)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def test_it_is_the_chat_models(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.has_chat_template


def test_text_survives_a_round_trip(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_a_conversation_ends_where_the_assistant_begins(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.decode(tokenizer.render_chat([{"role": "user", "content": "Hi"}]), skip_special_tokens=False)
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_any_tokens_decode_as_hugging_faces_do_and_token_by_token_alike(folder: Path, tokenizer: Tokenizer) -> None:
    reference = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    chance = random.Random(0)
    for _ in range(300):
        token_ids = chance.choices(range(tokenizer.vocab_size), k=40)
        decoder = IncrementalDecoder(tokenizer)
        whole = reference.decode(token_ids, skip_special_tokens=True)
        assert tokenizer.decode(token_ids) == whole
        assert "".join(map(decoder.feed, token_ids)) + decoder.flush() == whole
