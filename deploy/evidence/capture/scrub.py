"""What must not be kept of a request: keys, mail addresses and long numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), "<key>"),  # JSON web tokens
    (re.compile(r"(?i)\bbearer\s+[\w.~+/-]{8,}=*"), "<key>"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[abprs]|hf|npm|pypi)[-_][\w-]{12,}"), "<key>"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "<key>"),
    (re.compile(r"(?i)\b(password|passwd|secret|token|api[_-]?key)(\"?\s*[:=]\s*)[\"']?[^\s\"',;]{4,}"), r"\1\2<key>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
    # Before numbers, as such strings are full of them: 24 or more characters that mix letters and digits.
    (re.compile(r"(?<![\w/+=-])(?=[\w/+-]*\d)(?=[\w/+-]*[A-Za-z])[A-Za-z0-9/+_-]{24,}={0,2}"), "<key>"),
    # Telephone, card and account numbers: 7 or more digits, with the usual separators between them.
    (re.compile(r"(?<![\w.])\+?\d(?:[ ()./-]{0,2}\d){6,}"), "<number>"),
)
"""In this order. Names and addresses are not recognised: whoever captures decides whether the rest may be kept."""


def scrub_text(text: str) -> str:
    """The text with what the rules know replaced by `<key>`, `<mail>` or `<number>`."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


def scrub(value: Any) -> Any:
    """A JSON value with every text in it scrubbed, down to the parts of a message; keys stay."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, Mapping):
        return {key: scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value
