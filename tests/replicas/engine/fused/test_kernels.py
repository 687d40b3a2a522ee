"""What the kernels compute, held to torch's operations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from replicas.engine.fused import kernels
from replicas.engine.rope import rotate

ROOM = 7
"""Rows that there is room for; fewer are meant."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(count: int) -> kernels.Words:
    return np.empty(count, dtype=np.int32)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.float(), rtol=2e-5, atol=1e-6)


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=40), st.floats(-5, 5, width=32))
def test_exponentials_are_those_of_the_library(values: list[float], offset: float) -> None:
    found = np.array([*values, 1.0], dtype=np.float32)
    kernels.exponentiate(found, len(values), offset, words(len(values)))
    np.testing.assert_allclose(found[:-1], np.exp(np.array(values) - np.float32(offset)), rtol=1e-5, atol=1e-30)
    assert found[-1] == 1.0


def test_what_is_far_below_comes_to_nothing_and_nan_stays() -> None:
    found = np.array([-1e30, -np.inf, np.nan, 0.0], dtype=np.float32)
    kernels.exponentiate(found, 4, 0.0, words(4))
    assert (found[:2] == 0.0).all()
    assert np.isnan(found[2])
    assert found[3] == pytest.approx(1.0)


@pytest.mark.parametrize("width", [5, 48, 576])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_update_is_added_before_the_norm(rows: int, width: int) -> None:
    stream, update, weight = drawn(ROOM, width), drawn(rows, width, seed=1), drawn(width, seed=2)
    normed = torch.full((ROOM, width), 9.0)
    sums = stream.double()[:rows] + update.double() * 0.25
    before = stream.clone()
    kernels.add_and_norm(stream.numpy(), update.numpy(), 0.25, weight.numpy(), 1e-5, normed.numpy(), rows)
    close(stream[:rows], sums)
    close(normed[:rows], functional.rms_norm(sums, (width,), weight.double(), 1e-5))
    assert torch.equal(stream[rows:], before[rows:])
    assert (normed[rows:] == 9.0).all()


def test_queries_are_rotated_and_keys_and_values_cached() -> None:
    heads, kv_heads, head_dim, places = 4, 2, 6, 11
    qkv = drawn(3, (heads + 2 * kv_heads) * head_dim)
    angles = drawn(3, head_dim // 2, seed=1)
    rotation = torch.polar(torch.full_like(angles, 1.25), angles)[:, None]
    expected = qkv.view(3, -1, head_dim).clone() * 0.5
    rotate(expected[:, : heads + kv_heads], rotation)
    arena = torch.full((2 * kv_heads, places, head_dim), torch.nan)
    slots = torch.tensor([7, 2, 10])
    turned = torch.view_as_real(rotation).flatten(1).numpy()
    kernels.rotate_and_cache(qkv.numpy(), 0.5, turned, arena.numpy(), slots.numpy(), heads, 3)
    close(qkv.view(3, -1, head_dim)[:, :heads], expected[:, :heads])
    close(arena[:, slots], expected[:, heads:].transpose(0, 1))
    assert arena.isnan().sum() == (places - 3) * 2 * kv_heads * head_dim


def attended(
    queries: Tensor, arena: Tensor, seen: list[tuple[int, int, int]], sight: list[int], heads: int, scale: float = 0.3
) -> Tensor:
    room = arena.shape[1] + kernels.BLOCK
    found = torch.full((len(seen), heads * arena.shape[2]), torch.nan)
    mixed = np.full((kernels.HEADS, arena.shape[2]), np.nan, dtype=np.float32)
    scores, bits = np.full((kernels.HEADS, room), np.nan, dtype=np.float32), words(room)
    where, rows = np.array(seen), np.array(sight, dtype=np.uint64)
    kernels.attend(queries.numpy(), arena.numpy(), where, rows, scale, found.numpy(), mixed, scores, bits)
    return found


@given(st.integers(1, 7), st.integers(0, 9), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_each_row_attends_to_what_it_sees_alone(group: int, before: int, owns: list[int], data: st.DataObject) -> None:
    kv_heads, head_dim, places = 2, 5, 50
    heads = group * kv_heads
    seen, sight, masks, place = [], [], [], 1
    for own in owns:
        for row in range(own):
            visible = data.draw(st.integers(0, 2**own - 1)) | 1 << row
            seen.append((place, before, own))
            sight.append(visible)
            masks.append([*range(place, place + before), *(place + before + j for j in range(own) if visible >> j & 1)])
        place += before + own
    arena = torch.full((2 * kv_heads, places, head_dim), torch.nan)
    arena[:, 1:place] = drawn(2 * kv_heads, place - 1, head_dim)
    queries = drawn(len(seen), (heads + 2 * kv_heads) * head_dim, seed=1)
    found = attended(queries, arena, seen, sight, heads).view(len(seen), heads, head_dim)
    for row, visible_places in enumerate(masks):
        keys, values = arena[:, visible_places].double().repeat_interleave(group, dim=0).chunk(2)
        query = queries.double()[row, : heads * head_dim].view(heads, 1, head_dim)
        close(found[row], (((query @ keys.mT) * 0.3).softmax(-1) @ values)[:, 0])


@pytest.mark.parametrize(("size", "expected"), [(400.0, 2.0), (-400.0, 4.0)])
def test_scores_far_from_zero_neither_overflow_nor_vanish(size: float, expected: float) -> None:
    arena = torch.tensor([5.0, 2.0, 9.0, 8.0, 1.0]).view(1, 5, 1).repeat(2, 1, 4)
    arena[1] = torch.arange(5.0)[:, None]
    assert (attended(torch.full((1, 12), size), arena, [(0, 4, 1)], [1], 1) == expected).all()


def test_a_broken_model_shows() -> None:
    arena = drawn(2, 5, 4)
    arena[0, 2, 1] = torch.nan
    assert attended(drawn(1, 12), arena, [(0, 4, 1)], [1], 1).isnan().all()


@pytest.mark.parametrize("width", [3, 64, 1536])
def test_the_gate_is_silu(width: int) -> None:
    gate_and_up = drawn(3, 2 * width) * 8
    gate_and_up[0, 0], gate_and_up[1, 0] = -300.0, 300.0
    gate_and_up[2, 1] = torch.nan
    expected = functional.silu(gate_and_up.double()[:, :width] * 0.5) * gate_and_up.double()[:, width:] * 0.5
    gated = torch.full((ROOM, width), 9.0)
    kernels.gate(gate_and_up.numpy(), 0.5, gated.numpy(), 3, words(width))
    torch.testing.assert_close(gated[:3], expected.float(), rtol=2e-5, atol=1e-6, equal_nan=True)
    assert (gated[3:] == 9.0).all()
