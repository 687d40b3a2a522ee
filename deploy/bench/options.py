"""Which values may a benchmark's option take?"""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """A whole number above 0."""
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def at_least_one(text: str) -> float:
    """A number of 1 or more, not infinite."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from error
    if not 1 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return value
