"""Which values may a benchmark's option take?"""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number above 0."""
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
