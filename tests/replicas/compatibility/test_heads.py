"""Published heads: what fits is taken, and every kind of misfit is named before a weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConfigError
from replicas.compatibility.findings import Finding
from replicas.compatibility.heads import HeadFiles, HeadUse, compare_head
from replicas.compatibility.layout import Kind, medusa_shape, recognise
from replicas.compatibility.stored import StoredHead, StoredModel, read_head, read_shapes
from tests.replicas.compatibility import published as p

TARGET = StoredModel.model_validate(p.TARGET)


def compare(
    folder: Path, target: StoredModel = TARGET, draft_length: int = 3, *, taps_outputs: bool = False
) -> dict[str, Finding]:
    shapes = read_shapes(folder)
    kind = recognise(shapes)
    assert kind is not None
    use = HeadUse(draft_length, taps_outputs)
    findings = list(compare_head(target, HeadFiles(kind, read_head(folder), shapes), use))
    assert len({finding.what for finding in findings}) == len(findings)
    return {finding.what: finding for finding in findings}


def refused(findings: dict[str, Finding]) -> dict[str, str]:
    return {what: str(finding.problem) for what, finding in findings.items() if not finding.is_ok}


@pytest.mark.parametrize(
    ("shapes", "config", "kind"),
    [
        (p.eagle(), p.CONFIG, Kind.EAGLE),
        (p.eagle_cut(), p.EAGLE3_CONFIG, Kind.EAGLE),
        (p.eagle_cut(), p.CONFIG, Kind.EAGLE),
        (p.eagle3(), p.EAGLE3_CONFIG, Kind.EAGLE3),
        (p.eagle3("layers.0"), p.SPECULATORS_CONFIG, Kind.EAGLE3),
        (p.medusa(), p.MEDUSA_CONFIG, Kind.MEDUSA),
        (p.converted_medusa(), {"model_type": "medusa", "num_heads": 3}, Kind.MEDUSA),
    ],
)
def test_every_published_layout_is_recognised_and_fits_its_target(
    tmp_path: Path, shapes: p.Shapes, config: dict[str, Any], kind: Kind
) -> None:
    folder = p.write_head(tmp_path / "head", shapes, config)
    assert recognise(read_shapes(folder)) is kind
    assert refused(compare(folder)) == {}


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["model.layers.0.self_attn.q_proj.weight"], Kind.DRAFT_MODEL),
        (["medusa_head.0.0.linear.weight", "model.layers.0.mlp.up_proj.weight"], Kind.MEDUSA),
        (["something.else"], None),
        ([], None),
    ],
)
def test_a_checkpoint_is_known_by_its_names(names: list[str], kind: Kind | None) -> None:
    assert recognise(dict.fromkeys(names, (1, 1))) is kind


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_a_pickled_head_is_read_by_its_shapes_alone(tmp_path: Path, suffix: str) -> None:
    import torch

    folder = p.write_head(tmp_path / "head", {}, p.MEDUSA_CONFIG)
    (folder / "model.safetensors").unlink()
    huge = torch.zeros(1).expand(10**7, 10**5)  # four terabytes, were they read
    content = {name: torch.zeros(shape) for name, shape in p.medusa().items()}
    torch.save(content, folder / f"medusa_lm_head{suffix}")
    assert read_shapes(folder) == p.medusa()
    torch.save({"huge": huge}, folder / f"medusa_lm_head{suffix}")
    assert read_shapes(folder) == {"huge": (10**7, 10**5)}


def test_what_a_head_was_made_for_is_shown_but_never_believed(tmp_path: Path) -> None:
    speculators = compare(p.write_head(tmp_path / "s", p.eagle3("layers.0"), p.SPECULATORS_CONFIG))
    assert speculators["made for"].proposer == "someone/the-target"
    assert speculators["made for"].is_ok
    assert compare(p.write_head(tmp_path / "m", p.medusa(), p.MEDUSA_CONFIG))["made for"].is_ok


@pytest.mark.parametrize(
    ("shapes", "config", "target", "what", "problem"),
    [
        (p.eagle(), p.CONFIG, {"hidden_size": 64}, "hidden size", "the target's is 64, the head was made for 32"),
        (p.eagle3(), p.EAGLE3_CONFIG, {"hidden_size": 64}, "hidden size", "made for 32"),
        (p.medusa(), p.MEDUSA_CONFIG, {"hidden_size": 64}, "hidden size", "made for 32"),
        (p.eagle(), p.CONFIG, {"vocab_size": 401}, "vocabulary", "the target's is 401, the head was made for 400"),
        (p.medusa(), p.MEDUSA_CONFIG, {"vocab_size": 401}, "vocabulary", "made for 400"),
        (p.eagle3(), p.EAGLE3_CONFIG, {"vocab_size": 80}, "draft vocabulary", "drafts 100 tokens, more than"),
        (p.eagle_cut(), p.CONFIG, {"vocab_size": 80}, "draft vocabulary", "drafts 100 tokens, more than"),
        (p.eagle_cut(), p.CONFIG | {"draft_vocab_size": 90}, {}, "tensors", r"'d2t' is \[100\] where \[90\]"),
        (p.eagle3(), p.EAGLE3_CONFIG, {"vocab_size": 401}, "draft vocabulary", "its t2d marks 400 tokens"),
        (p.eagle3(), p.EAGLE3_CONFIG, {"num_hidden_layers": 6}, "tapped layers", "6 layers .* entering layers 2, 3, 3"),
        (
            p.eagle3(),
            p.EAGLE3_CONFIG | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 20]}},
            {},
            "tapped layers",
            "layers 1, 4, 20",
        ),
        (p.eagle(), p.CONFIG | {"num_hidden_layers": 2}, {}, "layers of the head", "it has 2 layers"),
    ],
)
def test_a_head_for_another_target_is_refused(
    tmp_path: Path, shapes: p.Shapes, config: dict[str, Any], target: dict[str, Any], what: str, problem: str
) -> None:
    folder = p.write_head(tmp_path / "head", shapes, config)
    found = compare(folder, StoredModel.model_validate(p.TARGET | target))[what]
    assert found.problem is not None
    assert found.remedy
    with pytest.raises(ConfigError, match=problem):
        raise ConfigError(found.problem)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("use_aux_hidden_state", False),
        ("use_input_layernorm_in_first_layer", False),
        ("use_last_layernorm", False),
        ("use_mtp_layernorm", True),
        ("parallel_draft_step", 2),
    ],
)
@pytest.mark.parametrize("is_nested", [True, False])
def test_a_network_that_is_not_the_papers_is_refused_by_the_flag_that_asks_for_it(
    tmp_path: Path, flag: str, value: bool | int, is_nested: bool
) -> None:
    config = p.EAGLE3_CONFIG | ({"eagle_config": {flag: value}} if is_nested else {flag: value})
    folder = p.write_head(tmp_path / "head", p.eagle3(), config)
    problem = f"its config asks for {flag}: {str(value).lower()}, which is not supported"
    assert refused(compare(folder)) == {"network": problem}


@pytest.mark.parametrize("eagle_config", [p.EAGLE_CONFIG, dict.fromkeys(p.EAGLE_CONFIG), None])
def test_flags_as_they_are_published_ask_for_nothing_else(tmp_path: Path, eagle_config: dict[str, Any] | None) -> None:
    folder = p.write_head(tmp_path / "head", p.eagle3(), p.EAGLE3_CONFIG | {"eagle_config": eagle_config})
    assert refused(compare(folder)) == {}


def test_layer_ids_are_read_as_they_will_be_at_load(tmp_path: Path) -> None:
    """The state entering the first layer is the embedding; the last layer's output is there as well."""

    def tapped(name: str, ids: list[int]) -> tuple[Finding, Finding]:
        config = p.EAGLE3_CONFIG | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
        folder = p.write_head(tmp_path / name, p.eagle3(), config)
        return compare(folder)["tapped layers"], compare(folder, taps_outputs=True)["tapped layers"]

    entering, leaving = tapped("both", [1, 4, 6])
    assert (entering.proposer, leaving.proposer) == ("1, 4, 6", "2, 5, 7")
    entering, leaving = tapped("entering", [1, 4, p.LAYERS])
    assert entering.is_ok
    assert leaving.problem == "a target of 8 layers does not have the states entering layers 2, 5, 9"
    assert leaving.remedy is not None
    assert leaving.remedy.startswith("set eagle_aux_layers: entering, or")
    entering, leaving = tapped("leaving", [-1, 4, 6])
    assert not entering.is_ok
    assert leaving.is_ok
    assert not tapped("none", [])[0].is_ok


# By these a checkpoint is known for what it is; t2d is not needed, for d2t alone leads to the target's ids.
KNOWN_BY = {"fc.weight", "midlayer.hidden_norm.weight", "t2d"}


@pytest.mark.parametrize("name", sorted(set(p.eagle3()) - KNOWN_BY))
def test_a_tensor_that_is_missing_or_misshapen_is_named(tmp_path: Path, name: str) -> None:
    without = {key: shape for key, shape in p.eagle3().items() if key != name}
    missing = compare(p.write_head(tmp_path / "missing", without, p.EAGLE3_CONFIG))
    assert refused(missing) == {"tensors": f"no '{name}'"}
    wrong = p.eagle3() | {name: (7,)}
    misshapen = compare(p.write_head(tmp_path / "wrong", wrong, p.EAGLE3_CONFIG))
    assert f"'{name}' is [7] where" in refused(misshapen)["tensors"]


def test_a_config_that_promises_a_bias_must_be_kept_and_one_that_is_silent_need_not(tmp_path: Path) -> None:
    without = {name: shape for name, shape in p.eagle().items() if name != "fc.bias"}
    assert refused(compare(p.write_head(tmp_path / "silent", without, p.CONFIG))) == {}
    promised = compare(p.write_head(tmp_path / "promised", without, p.CONFIG | {"bias": True}))
    assert refused(promised) == {"tensors": "no 'fc.bias'"}
    assert compare(p.write_head(tmp_path / "has", p.eagle(), p.CONFIG))["tensors"].note == "fc has a bias"


def test_it_is_said_what_part_of_the_vocabulary_a_head_drafts(tmp_path: Path) -> None:
    found = compare(p.write_head(tmp_path / "cut", p.eagle_cut(), p.CONFIG))["draft vocabulary"]
    assert (found.target, found.proposer, found.note) == ("400", "100", "a part of them, mapped by d2t")
    whole = compare(p.write_head(tmp_path / "whole", p.eagle(), p.EAGLE3_CONFIG))
    assert "draft vocabulary" not in whole, "without a map it drafts every token, whatever its config says"


def test_medusa_heads_are_counted_in_the_file(tmp_path: Path) -> None:
    folder = p.write_head(tmp_path / "head", p.medusa(5), p.MEDUSA_CONFIG)
    assert medusa_shape(read_shapes(folder)).heads == 5
    assert compare(folder, draft_length=5)["heads"].is_ok
    found = compare(folder, draft_length=6)["heads"]
    assert found.problem == "5 heads cannot draft 6 tokens"
    assert found.remedy == "set num_speculative_tokens to 5 or less"


def test_medusa_heads_inside_their_model_are_refused_as_they_are_at_load(tmp_path: Path) -> None:
    inside = {f"medusa_head.{name}": shape for name, shape in p.medusa().items()}
    whole = inside | {"model.embed_tokens.weight": (p.VOCABULARY, p.HIDDEN)}
    findings = compare(p.write_head(tmp_path / "head", whole, p.MEDUSA_CONFIG))
    assert refused(findings) == {"layout": "its heads lie inside the whole model that was trained with them"}
    assert "without that prefix" in str(findings["layout"].remedy)


def test_medusa_heads_without_an_output_are_refused(tmp_path: Path) -> None:
    trunks = {name: shape for name, shape in p.medusa().items() if ".linear." in name}
    assert refused(compare(p.write_head(tmp_path / "head", trunks, p.MEDUSA_CONFIG))) == {
        "vocabulary": "its heads have no output layer"
    }


@pytest.mark.parametrize(
    ("heads", "name", "shape", "problem"),
    [
        (p.medusa(), "3.1.weight", None, "no '3.1.weight'"),
        (p.medusa(), "3.1.weight", (7, p.HIDDEN), "'3.1.weight' is [7, 32] where [400, 32] is expected"),
        (p.medusa(), "2.0.linear.weight", (8, 8), "'2.0.linear.weight' is [8, 8]"),
        (p.converted_medusa(), "lm_heads.1.weight", None, "no 'lm_heads.1.weight'"),
    ],
)
def test_a_medusa_head_unlike_the_first_is_named(
    tmp_path: Path, heads: p.Shapes, name: str, shape: tuple[int, ...] | None, problem: str
) -> None:
    del heads[name]
    changed = heads | ({name: shape} if shape else {})
    findings = compare(p.write_head(tmp_path / "head", changed, p.MEDUSA_CONFIG))
    assert problem in refused(findings)["tensors"]


def test_converted_heads_may_share_one_output_layer(tmp_path: Path) -> None:
    shared = {name: shape for name, shape in p.converted_medusa().items() if not name.startswith("lm_heads.")}
    for name in ("lm_head.weight", "lm_heads.0.weight"):
        folder = p.write_head(tmp_path / name, shared | {name: (p.DRAFTED, p.HIDDEN)}, {"original_lm_head": True})
        assert refused(compare(folder)) == {}


def test_a_shorter_context_is_fine_and_said(tmp_path: Path) -> None:
    found = compare(p.write_head(tmp_path / "head", p.eagle(), p.CONFIG))["context"]
    assert found.is_ok
    assert found.note == "beyond 128 tokens the target decodes alone"


def test_a_config_without_sizes_is_one_line(tmp_path: Path) -> None:
    folder = p.write_head(tmp_path / "head", p.eagle(), {"vocab_size": p.VOCABULARY, "hidden_size": p.HIDDEN})
    with pytest.raises(ConfigError, match="lacks hidden_size, intermediate_size or num_attention_heads"):
        compare(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no tensors"), (b"not tensors at all", "not a readable safetensors file")],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as wrong:
        read_shapes(tmp_path)
    assert "\n" not in str(wrong.value)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "head.bin").write_bytes(pickle.dumps({"x": print}, protocol=2))
    with pytest.raises(ConfigError, match="cannot be read as tensors"):
        read_shapes(tmp_path)


def test_a_head_config_ignores_keys_it_does_not_know() -> None:
    assert StoredHead.model_validate({"auto_map": {"": "code.py"}, "hidden_size": 4}).hidden_size == 4
