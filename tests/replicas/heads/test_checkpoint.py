"""What cannot be a head for this target is refused in one line that names both sides."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleet.errors import ConfigError
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.eagle3 import eagle3_taps
from tests.replicas.heads.checkpoints import Files, eagle, eagle3, eagle_cut, speculators
from tests.replicas.heads.heads_rig import head_from


def offset(files: Files, place: int, value: int) -> Files:
    files.tensors["d2t"][place] = value
    return files


WRONG: dict[str, tuple[Callable[[], Files], str]] = {
    "hidden size": (lambda: eagle(hidden_size=32), "its hidden size is 32, that of tiny-target is 16"),
    "vocabulary": (lambda: eagle(vocab_size=61), "its vocabulary is 61, that of tiny-target is 60"),
    "eagle3 vocabulary": (lambda: eagle3(vocab_size=61), "its vocabulary is 61, that of tiny-target is 60"),
    "eagle3 width": (lambda: eagle3(target_hidden_size=24), "its hidden size is 24, that of tiny-target is 16"),
    "missing tensor": (lambda: eagle().drop("fc.weight"), "has no tensor 'fc.weight'; it has embed_tokens.weight"),
    "wrong shape": (lambda: eagle(intermediate_size=25), r"the shape \[24, 16\], expected \[25, 16\]"),
    "promised bias": (lambda: eagle().change(bias=True), "the file has no 'fc.bias'"),
    "two layers": (lambda: eagle(num_hidden_layers=2), "has 2 draft layers"),
    "missing key": (lambda: eagle().drop("hidden_size"), "hidden_size: Field required"),
    "activation": (lambda: eagle(hidden_act="gelu"), "activation 'gelu' is not supported"),
    "rotation": (lambda: eagle(rope_scaling={"rope_type": "dynamic"}), "rotary embedding 'dynamic' is not supported"),
    "no map": (lambda: eagle3().drop("d2t"), "no tensor 'd2t'"),
    "map out of range": (lambda: offset(eagle3(), 11, 60), "'d2t' does not lead to 12 different tokens below 60"),
    "map of absolute ids": (lambda: offset(eagle3(), 1, 2), "'d2t' does not lead to 12 different tokens below 60"),
    "eagle map out of range": (lambda: offset(eagle_cut(), 11, 60), "'d2t' does not lead to 12 different tokens below"),
    "eagle map below 0": (lambda: offset(eagle_cut(), 0, -1), "'d2t' does not lead to 12 different tokens below 60"),
    "eagle map of absolute ids": (lambda: offset(eagle_cut(), 1, 2), "'d2t' does not lead to 12 different tokens"),
    "eagle map of another length": (
        lambda: eagle_cut().change(draft_vocab_size=13),
        r"'d2t' has the shape \[12\], exp",
    ),
    "eagle map of nothing": (lambda: eagle_cut(draft_ids=()), "'d2t' does not lead to 0 different tokens below 60"),
    "layer ids": (lambda: speculators(eagle_aux_hidden_state_layer_ids="all"), "must be a list of layer numbers"),
    "other network": (
        lambda: eagle3(eagle_config={"use_last_layernorm": False, "parallel_draft_step": 2}),
        "asks for use_last_layernorm: false, parallel_draft_step: 2, which is not supported",
    ),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_pair_is_refused(name: str, tmp_path: Path) -> None:
    make, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as raised:
        head_from(make(), tmp_path)
    assert "\n" not in str(raised.value)


def test_an_eagle3_layout_is_not_taken_for_eagle1(tmp_path: Path) -> None:
    files = eagle()
    files.tensors["layers.0.input_layernorm.weight"] = torch.ones(16)
    with pytest.raises(ConfigError, match="not an EAGLE-1 head"):
        head_from(files, tmp_path)


@pytest.mark.parametrize(
    ("files", "are_outputs", "taps"),
    [
        (eagle3(), False, (2, 16, 29)),
        (eagle3(), True, (2, 16, 29)),
        (speculators(eagle_aux_hidden_state_layer_ids=[1, 15, 27]), False, (1, 15, 27)),
        (speculators(eagle_aux_hidden_state_layer_ids=[1, 15, 27]), True, (2, 16, 28)),
        (eagle3(eagle_config={"eagle_aux_hidden_state_layer_ids": [30, 2, 5]}), False, (30, 2, 5)),
    ],
)
def test_layer_ids_name_states_that_enter_layers_unless_told_otherwise(
    files: Files, are_outputs: bool, taps: tuple[int, ...], tmp_path: Path
) -> None:
    assert eagle3_taps(read_checkpoint(files.write(tmp_path)), 32, are_outputs=are_outputs) == taps


@pytest.mark.parametrize(("layers", "ids"), [(6, None), (32, [1, 1, 5]), (32, [1, 5, 33]), (2, None)])
def test_states_that_the_target_has_not_got_are_refused(layers: int, ids: list[int] | None, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(speculators(eagle_aux_hidden_state_layer_ids=ids).write(tmp_path))
    with pytest.raises(ConfigError, match=f"which {layers} layers do not offer"):
        eagle3_taps(checkpoint, layers)


def test_tensors_are_read_from_either_format_but_code_never_runs(tmp_path: Path) -> None:
    for file in ("model.safetensors", "pytorch_model.bin", "head.pt"):
        files = eagle3()
        files.file = file
        assert set(read_checkpoint(files.write(tmp_path / file)).tensors) == set(files.tensors)
    hostile = eagle().write(tmp_path / "hostile")
    (hostile / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Path}, protocol=2))
    with pytest.raises(ConfigError, match="cannot be read as tensors"):
        read_checkpoint(hostile)


def test_rows_are_picked_before_they_are_widened_and_what_is_taken_is_a_copy(tmp_path: Path) -> None:
    files = eagle()
    files.tensors = {name: tensor.bfloat16() for name, tensor in files.tensors.items()}
    found = read_checkpoint(files.write(tmp_path)).placed(torch.device("cpu"), torch.float32)
    picked: list[torch.Tensor] = []
    found.linear("fc", 16, 32, lambda rows: picked.append(rows[:3]) or picked[-1])  # type: ignore[func-returns-value]
    assert [tensor.dtype for tensor in picked] == [torch.bfloat16]
    taken = found.take("fc.weight", 16, 32)
    assert torch.equal(taken, found.tensors["fc.weight"].float())
    for each in (found, replace(found, dtype=None)):
        each.take("fc.weight", 16, 32).zero_()
    assert found.tensors["fc.weight"].any()


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_usable_config_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_checkpoint(tmp_path)


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match=r"has no \.safetensors, \.bin or \.pt file"):
        read_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ConfigError, match="cannot be read as tensors"):
        read_checkpoint(tmp_path)
