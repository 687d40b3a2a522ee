"""Text to token ids and back: one tokenizer for router, target and draft, compared by content."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from fleet.errors import BadRequest, ConfigError
from fleet.token_bytes import TokenBytes

LONGEST_UNFINISHED_TAIL = 8
"""Prompt tokens that can matter for the first output character: a UTF-8 character has at most 4 bytes."""


class Tokenizer:
    """A Hugging Face tokenizer whose tokens are runs of bytes, as in every byte-level or byte-fallback vocabulary."""

    def __init__(self, hugging_face: Any, eos_token_ids: frozenset[int]) -> None:
        self._hugging_face = hugging_face
        self._backend: Backend = hugging_face.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        """Ids from here on are padding of the model's output and mean nothing."""
        self.eos_token_ids = eos_token_ids
        self.bos_token_id: int | None = hugging_face.bos_token_id
        self.pad_token_id: int | None = hugging_face.pad_token_id
        self.chat_template: str | None = hugging_face.get_chat_template() if hugging_face.chat_template else None
        self._special_ids = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        token_bytes = TokenBytes(self._backend)
        self.strips_leading_space = token_bytes.strips_leading_space
        """Whether the space that marks a word's start is dropped at the start of a text."""
        self._tokens: list[bytes] = [b""] * self.vocab_size
        for token, token_id in vocabulary.items():
            self._tokens[token_id] = token_bytes.of(token)
        self.longest_token_bytes = max(map(len, self._tokens))
        """A text of n bytes has at least n divided by this many tokens."""
        self.content_hash = _content_hash(self._backend, vocabulary)

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer in a Hugging Face model folder, or a ConfigError in one line."""
        if not folder.is_dir():
            raise ConfigError(f"no tokenizer: {folder} is not a folder")
        try:
            hugging_face = _hugging_face(folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            first_line = str(error).strip().partition("\n")[0]
            raise ConfigError(f"no usable tokenizer in {folder}: {type(error).__name__}: {first_line}") from error
        if not hugging_face.is_fast:
            raise ConfigError(f"the tokenizer in {folder} has no tokenizer.json and cannot be converted to one")
        eos_token_ids = _eos_token_ids(folder) | {hugging_face.eos_token_id} - {None}
        return cls(hugging_face, frozenset(eos_token_ids))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; BadRequest for half a surrogate pair, which no tokenizer can represent."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"the text is not valid Unicode: {error.reason}") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens that start a text; bytes that are no UTF-8 become U+FFFD."""
        kept = [i for i in token_ids if not (skip_special_tokens and self.is_special(i))]
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def is_special(self, token_id: int) -> bool:
        """Whether the token is control, such as end of sequence, and no text."""
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, possibly a part of a character; nothing for ids outside the vocabulary."""
        return self._tokens[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int) -> str:
        """The token for a human to read, as in log-probabilities; a part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, written by the model's own template; no bos beyond the template's.

        Raises BadRequest naming `messages` where there is no template or the template refuses.
        """
        if not self.has_chat_template:
            raise BadRequest("this model has no chat template: use /v1/completions", param="messages")
        try:
            text = self._hugging_face.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(template_kwargs or {}),
            )
        except (TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadRequest(f"the chat template rejects these messages: {error}", param="messages") from error
        return self.encode(text, add_special_tokens=False)


class IncrementalDecoder:
    """Decodes token by token to the same text as all at once; bytes of an unfinished character are held back.

    `prompt_tail` is the end of what precedes the output. It settles whether the first space counts, and a
    character that it left unfinished. Special tokens are skipped.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_tail: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.strips_leading_space and all(map(tokenizer.is_special, prompt_tail))
        for token_id in prompt_tail[-LONGEST_UNFINISHED_TAIL:]:
            self.feed(token_id)

    def feed(self, token_id: int) -> str:
        """The characters that this token completes."""
        if self._tokenizer.is_special(token_id):
            return ""
        return self._at_start(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became complete."""
        return self._at_start(self._utf8.decode(b"", final=True))

    def _at_start(self, text: str) -> str:
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


def _hugging_face(folder: Path) -> Any:
    """The tokenizer as `transformers` reads it."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        # Here, because it imports torch and every tokenizer class: seconds of each start.
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # For a file that it cannot read `tokenizers` raises the bare class; everything else has a type of its own.
        if type(error) is not Exception:
            raise
        raise ValueError(f"{file.name}: {error}") from error


def _eos_token_ids(folder: Path) -> set[int]:
    """Every end-of-sequence id that the model's own files name; chat models often name several."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if not path.exists():
            continue
        try:
            settings = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        named = settings.get("eos_token_id", settings.get("text_config", {}).get("eos_token_id"))
        found.update(named if isinstance(named, list) else [] if named is None else [named])
    return found


def _content_hash(backend: Backend, vocabulary: Mapping[str, int]) -> str:
    """Equal exactly where two tokenizers give the same ids the same meaning and merge text alike."""
    content = {
        "vocabulary": sorted((token_id, token) for token, token_id in vocabulary.items()),
        "special": sorted(
            (token_id, token.content, token.special) for token_id, token in backend.get_added_tokens_decoder().items()
        ),
        "merges": json.loads(backend.to_str())["model"].get("merges"),
    }
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()
