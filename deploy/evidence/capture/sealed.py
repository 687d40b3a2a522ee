"""A captured slice on disk: JSON lines, encrypted when a key is given."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from deploy.evidence.capture.reservoir import CapturedRequest
from fleet.errors import ConfigError

MAGIC = b"fleet-capture-1 "
SHORTEST_KEY = 16


def write_slice(path: Path, requests: Iterable[CapturedRequest], key: str | None) -> None:
    """Replace the file, readable by its owner alone; with a key it is encrypted and authenticated (Fernet).

    Raises `ConfigError` where the key is too short or the file cannot be written.
    """
    content = b"".join(request.line() for request in requests)
    if key is not None:
        content = MAGIC + _cipher(key).encrypt(content)
    draft = path.with_name(path.name + ".part")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def opened(path: Path, content: bytes, key: str | None) -> bytes:
    """The plain content of a file that may be encrypted. Raises `ConfigError` where the key is missing or wrong."""
    if not content.startswith(MAGIC):
        return content
    if key is None:
        raise ConfigError(f"{path} is encrypted: give its key, such as workload.key: 'env:NAME'")
    try:
        return _cipher(key).decrypt(content.removeprefix(MAGIC))
    except InvalidToken as error:
        raise ConfigError(f"{path} does not open with this key, or was changed since it was written") from error


def _cipher(key: str) -> Fernet:
    """The key is meant to be random; it is only brought to the length that Fernet wants, not made stronger."""
    if len(key) < SHORTEST_KEY:
        raise ConfigError(f"the key is too short: give at least {SHORTEST_KEY} random characters")
    return Fernet(urlsafe_b64encode(sha256(key.encode()).digest()))
