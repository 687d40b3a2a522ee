"""Does an answer only repeat itself? Loops are easy to draft, so they flatter every proposer."""

from __future__ import annotations

import re

WINDOW = 4
FEWEST_WORDS = 16
"""Shorter answers cannot be told from short lists."""
MOST_REPEATED = 0.5


def repetition(text: str) -> float:
    """Share of the text's runs of four words that occurred before: seq-rep-4 (Welleck et al., ICLR 2020, section 6)."""
    words = re.findall(r"\w+|[^\w\s]", text)
    runs = [tuple(words[start : start + WINDOW]) for start in range(len(words) - WINDOW + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def is_degenerate(text: str) -> bool:
    """Whether most of a text of some length is repetition."""
    return len(re.findall(r"\w+|[^\w\s]", text)) >= FEWEST_WORDS and repetition(text) > MOST_REPEATED
