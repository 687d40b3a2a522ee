"""In how many bytes does a pass read what is planned? On a CPU half of them only where the values allow it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.planning.architecture import Architecture
from deploy.planning.config_file import find_architecture
from deploy.planning.formats import Formats
from deploy.planning.proposers import Proposer, build_proposer, parse_proposer
from replicas.engine.footprint import Keeping, Layout

HALF, PACKED, WIDE = Keeping(4, Layout.HALF), Keeping(2, Layout.PACKED), Keeping(4, Layout.PACKED)


def stored_in(number_format: str) -> Architecture:
    return replace(find_architecture("llama-3.1-8b"), stored_format=number_format)


def on_cpu(dtype: str, keeping: Keeping) -> Formats:
    return Formats(dtype, float(keeping.number_bytes), keeping)


def beside(text: str, target: Architecture, formats: Formats) -> Proposer:
    return build_proposer(parse_proposer(text, draft_length=4, acceptance=None), target, 1, formats)


@pytest.mark.parametrize(
    ("dtype", "stored", "keeping", "read"),
    [
        ("float32", "float32", HALF, "float32"),
        ("float32", "bfloat16", HALF, "bfloat16"),
        ("float32", "float16", HALF, "bfloat16"),
        ("bfloat16", "float32", HALF, "bfloat16"),
        ("float32", "bfloat16", WIDE, "float32"),
        ("bfloat16", "float32", PACKED, "bfloat16"),
    ],
)
def test_a_cpu_reads_half_the_bytes_where_the_values_allow_it(
    dtype: str, stored: str, keeping: Keeping, read: str
) -> None:
    assert on_cpu(dtype, keeping).read(stored_in(stored)) == read


@pytest.mark.parametrize(("stored", "number_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_a_head_in_16_bits_reads_half_the_bytes_but_the_targets_output_as_the_target_does(
    stored: str, number_bytes: int
) -> None:
    target, formats = stored_in(stored), on_cpu("float32", HALF)
    output = target.vocabulary * target.hidden
    eagle, eagle3, medusa = (beside(method, target, formats) for method in ("eagle", "eagle3", "medusa"))
    for proposer, borrowed in ((eagle, output), (eagle3, 0), (medusa, 0)):
        assert proposer.cost is not None
        assert proposer.cost.fixed_bytes == 2 * proposer.parameters + number_bytes * borrowed
        assert proposer.cost.flops_per_token == 2 * (proposer.parameters + borrowed)


def test_on_a_gpu_a_head_is_read_in_the_targets_numbers_and_never_quantised() -> None:
    target = stored_in("bfloat16")
    for weights, number_bytes in (("float32", 4), ("bfloat16", 2), ("int4", 2)):
        eagle = beside("eagle", target, Formats(weights))
        assert eagle.cost is not None
        assert eagle.cost.fixed_bytes == number_bytes * (eagle.parameters + target.vocabulary * target.hidden)
        assert eagle.weight_bytes == number_bytes * eagle.parameters
