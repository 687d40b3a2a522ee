"""Options of benchmarks take what they can work with, and nothing else."""

from __future__ import annotations

import argparse

import pytest

from deploy.bench.options import at_least_one


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("1.5", 1.5)])
def test_requests_may_be_a_fraction_of_those_under_way(text: str, value: float) -> None:
    assert at_least_one(text) == value


@pytest.mark.parametrize("text", ["0.5", "-2", "inf", "nan", "many"])
def test_less_than_one_and_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        at_least_one(text)
