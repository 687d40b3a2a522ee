"""Which bytes a vocabulary entry adds to a text, for the two families of decoders that text models use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from fleet.errors import ConfigError

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SENTENCE_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class TokenBytes:
    """Byte-level vocabularies (GPT-2, Llama 3, Qwen) and SentencePiece-like ones (Llama 2, Mistral, Gemma)."""

    def __init__(self, backend: Backend) -> None:
        self._decoder = backend.decoder
        kinds = _decoder_kinds(json.loads(backend.to_str())["decoder"])
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        if not self._is_byte_level and (not kinds or not kinds <= SENTENCE_DECODERS):
            raise ConfigError(f"tokenizers that decode with {sorted(kinds) or 'nothing'} are not supported")
        self._byte_of = {character: byte for byte, character in enumerate(_byte_alphabet())}
        self.strips_leading_space = not self._is_byte_level and not self._decoder.decode(["▁x"]).startswith(" ")

    def of(self, token: str) -> bytes:
        """The bytes of a token that does not start the text; possibly a part of a character."""
        if self._is_byte_level:
            if all(character in self._byte_of for character in token):
                return bytes(self._byte_of[character] for character in token)
            return token.encode()
        byte = BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        if byte:
            return bytes([int(byte[1], 16)])
        # After another word: alone, the token would be the start of a text and lose its space.
        decoded: str = self._decoder.decode(["x", token])
        return decoded.removeprefix("x").encode()


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return {kind for part in decoder["decoders"] for kind in _decoder_kinds(part)}
    return {decoder["type"]}


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2): itself where printable."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]
