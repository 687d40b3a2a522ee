"""What must not be kept of a request: keys, mail addresses and long numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KEY = "<key>"

# What a secret is called, at the end of a longer name or with a number or a word behind it: DB_PASSWORD, clientSecret,
# apiKey2, SECRET_KEY_BASE. Nothing may follow `token`, for max_tokens and token_count are no secrets.
_NAME = (
    r"(?=[acelmpst])(?:"
    r"(?:pass(?:word|wort|phrase|code|wd)|pwd|secret|credential"
    r"|(?:access|account|api|auth|encryption|license|master|private|shared|signing|subscription)[ _-]?key)"
    r"(?:s|\d{1,4}|[_-]\w{1,24})?+"
    r"|token\d{0,4}+|(?<=[_-])pass)"
)
# Closing marks of the name, what binds the two, and Markdown's stars: `"]" = `, `\": `, `:** `, `=>`, `>`, `!=`.
_BINDS = r"(?:[\\\"'`\])*]{0,6}+\s{0,8}+(?:=>|:=|[!=]?={1,2}|:|%3[ad])[*\s]{0,8}+|>(?![<\s]))"
_BARE = r"(?=[^\s\"'`]{4})(?:(?!</)[^\s\"'`])*(?!</)[^\s\"'`,;.)\]}]"
# To the mark with which it began, even one that is escaped itself, as in JSON within JSON; or to the line's end.
_QUOTED = r"(?P<mark>\\{0,3}[\"'`])(?:(?!(?P=mark))(?:\\.|[^\r\n\\]))++"
_VALUE = rf"(?:{_QUOTED}|{_BARE})"

_SECRET_NAME = re.compile(rf"(?i){_NAME}\Z")
_SAID = r"\s{1,8}(?:is|was|ist|lautet)(?::|\s)\s{0,8}"
_AUTHORIZATION = r"authorization[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"
_COOKIE = r"cookie[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"

RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            KEY,
        ),
        (r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?", KEY),  # JSON web tokens
        (rf"(?i)({_AUTHORIZATION})(?:[a-z][\w-]{{2,20}}\s{{1,8}}(?=[^\s\"']))?[^\s\"']++", rf"\1{KEY}"),
        (rf"(?i)({_COOKIE})[^\s\"'=;]{{1,80}}+=[^\r\n\"']++", rf"\1{KEY}"),
        (r"(?i)\bbearer\s{1,8}+(?=[\w.~+/-]{8}|[a-z._~+/-]{0,7}\d)[\w.~+/-]++=*+", KEY),
        (r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[abprs]|hf|npm|pypi)[-_][\w-]{12,}+", KEY),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", KEY),
        (r"(?<=://)[^\s/@:\"']{0,80}+:[^\s/@\"']{1,200}+@", rf"{KEY}@"),  # who asks, and with which password
        (rf"(?i)({_NAME}{_BINDS}){_VALUE}", rf"\1\g<mark>{KEY}"),
        (rf"(?i)((?<![\w-])--?(?:[\w-]{{0,40}}?){_NAME}\s{{1,8}}+)(?!-){_VALUE}", rf"\1\g<mark>{KEY}"),
        # In a sentence only what has a digit: a token is invalid, a password is hunter22.
        (rf"(?i)(\b(?:{_NAME}|pin){_SAID})(?=[^\s]{{0,40}}\d){_VALUE}", rf"\1\g<mark>{KEY}"),
        (r"(?<![\w.+-])[\w.+-]++(?:@|%40)[\w-]++(?:\.[\w-]++)++", "<mail>"),
        # Before numbers, as such strings are full of them: 24 or more characters that mix letters and digits.
        (r"(?<![\w/+-])(?=[A-Za-z/+_-]*+[0-9])(?=[0-9/+_-]*+[A-Za-z])[A-Za-z0-9/+_-]{24,}+={0,2}", KEY),
        # Telephone, card and account numbers: 7 or more digits, with the usual separators between them.
        (r"(?<![\w.])\+?\d(?:[ ()./-]{0,2}+\d){6,}+", "<number>"),
    )
)
"""In this order. Names and addresses are not recognised: whoever captures decides whether the rest may be kept.

Each takes time in proportion to the text, however hostile: what repeats is bounded, or begins only where no such run
goes on (the lookbehinds), and is not given back (`++`), so that no stretch of text is read again and again.
"""


def scrub_text(text: str) -> str:
    """The text with what the rules know replaced by `<key>`, `<mail>` or `<number>`; a second time changes nothing.

    A replacement may leave beside it what another rule knows, so they are applied until none does. That comes to an
    end, as every change leaves fewer of the characters that were there, or shorter replacements.
    """
    while (scrubbed := _applied(text)) != text:
        text = scrubbed
    return text


def scrub(value: Any) -> Any:
    """A JSON value with every text in it scrubbed, down to the parts of a message; keys stay.

    What a key names as a secret goes as a whole.
    """
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, Mapping):
        return {key: KEY if _is_secret(key, item) else scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def _applied(text: str) -> str:
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


def _is_secret(key: str, item: Any) -> bool:
    return isinstance(item, (str, int)) and not isinstance(item, bool) and _SECRET_NAME.search(key) is not None
