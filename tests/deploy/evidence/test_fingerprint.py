"""What a fingerprint notices, and what it does not mind."""

from __future__ import annotations

import json
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import pytest

from canary.evidence import changed_parts
from deploy.evidence.fingerprint import LIBRARIES, PROTOCOL, SAMPLE_BYTES, SAMPLES, digest_of, fingerprint_of
from deploy.evidence.matrix import Inputs, lay_out, levels, schedule
from deploy.serve_args import PathArgs
from tests.deploy.evidence.bench import PROMPTS, config_of


def model_folder(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def fingerprint(folder: Path, **changes: object) -> dict[str, str]:
    args = PathArgs.model_validate({"path": "speculative", "model": {"model": str(folder)}, **changes})
    return fingerprint_of(args, lambda text: None)


def test_where_a_model_lies_does_not_matter_but_what_is_in_its_files_does(tmp_path: Path) -> None:
    one, copy = (fingerprint(model_folder(tmp_path / name)) for name in ("one", "copy"))
    assert one == copy
    other = fingerprint(model_folder(tmp_path / "other", b"trained again"))
    (change,) = changed_parts(one, other)
    assert change.startswith("model.weights was ")


def test_every_setting_is_a_part_with_its_name_and_both_values(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = fingerprint(folder, speculative={"method": "ngram"})
    after = fingerprint(
        folder,
        model={"model": str(folder), "dtype": "float32", "served_name": "another"},
        engine={"max_num_seqs": 32},
        speculative={"method": "ngram", "num_speculative_tokens": 7},
    )
    assert changed_parts(before, after) == [
        "engine.max_num_seqs was 16, is 32",
        "model.dtype was bfloat16, is float32",
        "speculative.num_speculative_tokens was 16, is 7",
    ]


def test_a_setting_that_a_later_version_brings_is_no_change_until_somebody_sets_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    speculative = {"method": "draft_model", "layers": 2}
    now = fingerprint(folder, speculative=speculative)
    before = {part: value for part, value in now.items() if part != "speculative.max_model_len"}
    assert len(before) == len(now) - 1
    assert changed_parts(before, now) == []
    limited = fingerprint(folder, speculative=speculative | {"max_model_len": 64})
    assert changed_parts(before, limited) == ["speculative.max_model_len was nothing, is 64"]


def test_the_ends_of_answers_that_the_model_names_are_a_part(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = fingerprint(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    (change,) = changed_parts(before, fingerprint(folder))
    assert change.startswith("model.generation_config was none, is ")


def test_the_versions_of_the_stream_and_of_the_benchmark_are_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "model")
    before = fingerprint(folder)
    monkeypatch.setattr("deploy.evidence.fingerprint.STREAM_VERSION", 12)
    monkeypatch.setattr("deploy.evidence.fingerprint.PROTOCOL", 34)
    assert [change.partition(" ")[0] for change in changed_parts(before, fingerprint(folder))] == [
        "bench.protocol",
        "router.stream",
    ]


ASKED_BY_PROTOCOL = dict.fromkeys((1, 2), "deef6bc6d2b4c7a1")  # 2 counts lost requests otherwise


def test_blocks_that_ask_something_else_need_another_protocol() -> None:
    """Where this fails because a block was meant to change, raise `PROTOCOL` and note the new digest."""
    config = config_of(rounds=2, requests=5, load={"concurrency": [1, 3], "rate": [4.0]})
    digest = blake2b(digest_size=8)
    for block in schedule(config, levels(config)):
        plan = lay_out(config, Inputs(PROMPTS), block)
        asked = [question.body("m") for question in plan.questions]
        digest.update(repr((block.arm.name, asked, plan.warm_up, plan.measured, plan.most_open)).encode())
    assert ASKED_BY_PROTOCOL[PROTOCOL] == digest.hexdigest()


def test_a_proposers_files_count_by_their_content(tmp_path: Path) -> None:
    folder, head = model_folder(tmp_path / "model"), model_folder(tmp_path / "head")
    asked = {"speculative": {"method": "eagle3", "model": str(head)}}
    before = fingerprint(folder, **asked)
    (head / "model.safetensors").write_bytes(b"another")
    assert [change.split(" was ")[0] for change in changed_parts(before, fingerprint(folder, **asked))] == [
        "proposer.files"
    ]


def test_hardware_and_libraries_are_named(tmp_path: Path) -> None:
    parts = fingerprint(model_folder(tmp_path / "model"))
    named = {"hardware.cpu", "hardware.cores", "hardware.gpus", "version.python", *(f"version.{n}" for n in LIBRARIES)}
    assert named <= parts.keys()
    assert all(parts[name] for name in named)
    assert json.loads(json.dumps(parts)) == parts


def test_another_compiler_of_the_kernels_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "model")
    before = fingerprint(folder)
    monkeypatch.setattr("deploy.evidence.fingerprint.version", lambda name: "9" if name == "numba" else version(name))
    assert changed_parts(before, fingerprint(folder)) == [f"version.numba was {version('numba')}, is 9"]


@pytest.mark.parametrize("place", [0, 12_345_678, -1])
def test_a_large_file_is_known_by_blocks_from_its_begin_to_its_end(tmp_path: Path, place: int) -> None:
    """Of a file that is not read whole a change all over is seen, and so is one at either end."""
    file = tmp_path / "model.safetensors"
    content = bytearray(SAMPLES * SAMPLE_BYTES + 10**6)
    file.write_bytes(content)
    before = digest_of(tmp_path, ["*.safetensors"])
    if place > 0:
        content[:: SAMPLE_BYTES // 2] = b"x" * len(content[:: SAMPLE_BYTES // 2])
    else:
        content[place] = 1
    file.write_bytes(content)
    assert digest_of(tmp_path, ["*.safetensors"]) != before
    assert digest_of(tmp_path, ["*.bin"]) == "none"
