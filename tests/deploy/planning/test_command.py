"""`fleet plan` from the command line: tables, JSON, and one line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from deploy.cli import app
from deploy.planning.acceptance import Acceptance, parse_acceptance
from deploy.planning.config_file import SHIPPED_MODELS
from deploy.planning.measured import acceptance_in
from fleet.errors import ConfigError
from replicas.engine.decoder_config import parse_config
from replicas.engine.footprint import LinearSize, model_footprint
from replicas.engine.linear import FP16_ENGINES, keeping_on

CPU = ("--device", "cpu", "--memory", "16GiB", "--bandwidth", "20GB/s", "--tflops", "0.1")
METRICS = """\
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{path="speculative"} 200.0
vllm:spec_decode_num_drafts_total{path="other"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{path="speculative",position="1"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{path="speculative",position="0"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{path="other",position="0"} 30.0
"""


@pytest.fixture
def plan() -> Callable[..., Any]:
    return lambda *arguments: CliRunner().invoke(app, ["plan", *arguments])


def answer(plan: Callable[..., Any], *arguments: str) -> dict[str, Any]:
    done = plan(*arguments, "-o", "json")
    assert done.exit_code == 0, done.exception
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_the_tables_name_costs_gains_limits_and_that_it_is_a_prior(plan: Callable[..., Any]) -> None:
    done = plan("llama-3.1-8b", "--gpu", "h200", "-p", "draft_model:llama-3.2-1b", "-p", "eagle3,acceptance=0.75")
    assert done.exit_code == 0
    for words in ("memory of one device", "what fits", "speed-up at batch", "breaks even at acceptance", "round trip"):
        assert words in done.stdout
    assert "693," in done.stdout
    assert "acceptance 0.7 (assumed" in done.stdout
    assert "A prior for choosing what to measure first, never a verdict" in done.stdout


def test_the_tables_say_what_is_lost_and_what_positions_without_a_figure_count_as(plan: Callable[..., Any]) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "h200", "-p", "eagle3")
    short = plan(*arguments, "--acceptance", "0.8/0.6/0.45").stdout
    assert "tokens lost" in short
    assert "4 drafts a round, acceptance 0.8/0.6/0.45 (3 positions given: drafts beyond them count as never" in short
    for enough in ("0.8/0.6/0.45/0.3", "0.8"):
        assert "positions given" not in plan(*arguments, "--acceptance", enough).stdout


def test_json_holds_the_same_figures(plan: Callable[..., Any]) -> None:
    value = answer(
        plan, "llama-3.1-8b", "--gpu", "H200", "-p", "eagle3", "--acceptance", "0.75", "-b", "1", "-b", "400"
    )
    (eagle,) = value["proposers"]
    assert eagle["is_acceptance_assumed"] is False
    assert [capacity["context"] for capacity in eagle["memory"]["capacities"]] == [512, 4096]
    assert eagle["memory"]["capacities"][1]["lost"] == pytest.approx(0.037, abs=0.001)
    short, long = eagle["contexts"]
    assert [cell["batch"] for cell in short["cells"]] == [1, 400]
    assert [cell["batch"] for cell in long["cells"]] == [1], "400 sequences of 4096 tokens do not fit"
    assert short["paying_batches"][0][0] == 1
    assert eagle["round_trips"] == [], "a head in the target's process has no network"


def test_a_full_cache_pays_for_the_sequences_that_the_draft_displaces(plan: Callable[..., Any]) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "H200", "-c", "4096", "--round-trip-ms", "0", "--acceptance", "0.7")
    draft = "draft_model:llama-3.2-1b"
    same, own = (answer(plan, *arguments, "-p", draft + on)["proposers"][0] for on in ("", ",on=own"))
    assert same["contexts"][0]["cells"] == own["contexts"][0]["cells"], "at equal batch both are as fast"
    assert same["contexts"][0]["peak_ratio"] < own["contexts"][0]["peak_ratio"]
    assert (same["own_gpu_bytes"], own["memory"]["proposer_weights"]) == (0.0, 0.0)
    assert own["own_gpu_bytes"] > 0


def test_on_a_cpu_weights_and_cache_are_planned_as_the_engine_keeps_them_there(plan: Callable[..., Any]) -> None:
    value = answer(plan, "smollm2-135m", *CPU, "-p", "medusa", "-p", "draft_model:smollm2-135m")
    keeping = keeping_on(torch.device("cpu"), "bfloat16")
    config = parse_config(json.loads((SHIPPED_MODELS / "smollm2-135m.json").read_text())["config"], "smollm2-135m")
    kept = model_footprint(config, is_narrow=True).bytes_in(keeping)
    assert value["baseline"]["weights"] == kept > 2 * value["parameters"]
    assert value["baseline"]["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * keeping.number_bytes
    medusa, draft = value["proposers"]
    assert draft["memory"]["proposer_weights"] == kept, "a draft is kept in the target's dtype"
    heads = medusa["memory"]["proposer_weights"]
    assert heads == 4 * sum(keeping.linear_bytes(LinearSize(rows, 576, True)) for rows in (576, 49152))


@pytest.mark.skipif(torch.backends.quantized.engine not in FP16_ENGINES, reason="weights take no half of their bytes")
def test_on_a_cpu_a_model_stored_in_float32_takes_twice_the_time_to_read(
    plan: Callable[..., Any], tmp_path: Path
) -> None:
    config = json.loads((SHIPPED_MODELS / "smollm2-135m.json").read_text())["config"]
    slow = ("--device", "cpu", "--memory", "16GiB", "--bandwidth", "1MB/s", "--tflops", "1000", "--dtype", "float32")
    gains = []
    for stored in ("bfloat16", "float32"):
        (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": stored, "torch_dtype": stored}))
        value = answer(plan, str(tmp_path), *slow, "-p", "ngram", "-b", "1", "-c", "1")
        gains.append(value["proposers"][0]["contexts"][0]["cells"][0]["longest_round_trip_seconds"])
    assert gains[1] == pytest.approx(2 * gains[0], rel=0.01)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_layer_with_a_window_keeps_every_token_as_the_engine_does(plan: Callable[..., Any], device: str) -> None:
    room = ("--memory", "256GiB", "--bandwidth", "20GB/s", "--tflops", "0.1")
    row = answer(plan, "gemma-3-27b", "--device", device, *room, "-p", "ngram", "-c", "8192")["baseline"]
    (capacity,) = row["capacities"]
    assert capacity["tokens"] * row["kv_bytes_per_token"] == pytest.approx(row["kv_cache"], rel=0.001)
    assert capacity["sequences"] == capacity["tokens"] // (8192 + 1)


def test_deepseek_fits_eight_gpus_in_its_stored_fp8(plan: Callable[..., Any]) -> None:
    value = answer(plan, "deepseek-v3", "--gpu", "H200", "-t", "8", "-p", "ngram")
    assert value["number_format"] == "fp8"
    assert value["baseline"]["weights"] * 8 == pytest.approx(673e9, rel=0.01)
    assert value["baseline"]["kv_bytes_per_token"] == 61 * 576 * 2


def test_figures_given_by_hand_replace_the_cards(plan: Callable[..., Any]) -> None:
    by_name = answer(plan, "llama-3.1-8b", "--gpu", "H100", "-p", "ngram")
    facts = ("--gpu-memory", "79.1GiB", "--bandwidth", "3.35TB/s", "--tflops", "989")
    by_hand = answer(plan, "llama-3.1-8b", *facts, "-p", "ngram")
    assert by_hand | {"gpu": "H100"} == by_name


def test_acceptance_is_read_from_a_fleets_metrics(plan: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text(METRICS)
    value = answer(
        plan, "llama-3.1-8b", "--gpu", "H100", "-p", "eagle3", "--measured", str(file), "--path", "speculative"
    )
    assert value["proposers"][0]["acceptance"] == "0.75/0.5"
    best = [cell["best_length"] for row in value["proposers"][0]["contexts"] for cell in row["cells"]]
    assert max(best) <= 2, "a position that was not measured is never reckoned with"


def test_rates_by_position_are_per_round_and_pooled_over_paths() -> None:
    assert acceptance_in(METRICS, "speculative") == Acceptance(per_position=(0.75, 0.5))
    pooled = acceptance_in(METRICS)
    assert pooled is not None
    assert pooled.per_position == pytest.approx((0.6, 1 / 3))
    assert acceptance_in("") is None


EMPTY_ROUNDS = """\
# TYPE fleet_rounds_empty counter
fleet_rounds_empty_total{path="speculative"} 1800.0
fleet_rounds_empty_total{path="other"} 0.0
"""


def test_a_fleet_that_seldom_drafts_is_not_promised_what_drafting_in_every_round_would_bring(
    plan: Callable[..., Any], tmp_path: Path
) -> None:
    always, seldom = tmp_path / "always.txt", tmp_path / "seldom.txt"
    always.write_text(METRICS)
    seldom.write_text(METRICS + EMPTY_ROUNDS)
    arguments = ("llama-3.1-8b", "--gpu", "H100", "-p", "eagle3", "-k", "2", "-b", "1", "--path", "speculative")
    often, rare = (answer(plan, *arguments, "--measured", str(file))["proposers"][0] for file in (always, seldom))
    assert (rare["acceptance"], rare["drafting_share"]) == ("0.75/0.5", 0.1)
    gains = [item["contexts"][0]["cells"][0]["speed_up"] - 1 for item in (often, rare)]
    assert 0.0 < gains[1] < 0.2 * gains[0]
    assert often["contexts"][0]["paying_batches"] == rare["contexts"][0]["paying_batches"]
    told = plan(*arguments, "--measured", str(seldom)).stdout
    assert "acceptance 0.75/0.5 in the 10% of the rounds that draft" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-9"], "no config for 'llama-9'"),
        (["llama-3.1-8b"], r"say which GPU: --gpu B200\|…, or --gpu-memory"),
        (["llama-3.1-8b", "--gpu", "H20"], "GPU 'H20' is not known; did you mean"),
        (["llama-3.1-8b", "--gpu", "H200", "--gpu-memory", "lots"], "--gpu-memory 'lots' is no size"),
        (["llama-3.1-8b", "--gpu", "H200", "-p", "magic"], "method 'magic' is not known; known: draft_model, eagle"),
        (["llama-3.1-8b", "--gpu", "H200", "-p", "draft_model"], "needs its model: draft_model:MODEL"),
        (["llama-3.1-8b", "--gpu", "H200", "-p", "ngram:x"], "takes no model, write 'ngram'"),
        (["llama-3.1-8b", "--gpu", "H200", "-p", "eagle3,k=99"], "'k=99' is not understood; write k=1..32"),
        (["llama-3.1-8b", "--gpu", "H200", "--acceptance", "1.2"], "must lie between 0 and 1"),
        (["llama-3.1-8b", "--gpu", "H200", "--acceptance", "0.5/0.6"], "rates must fall"),
        (["llama-3.1-8b", "--gpu", "H200", "--acceptance", "high"], "is no rate"),
        (["llama-3.1-8b", "--gpu", "H200", "--measured", "/no/file"], "cannot read /no/file"),
        (["llama-3.1-8b", "--gpu", "H200", "-c", "200000"], "exceeds the model's context of 131072"),
        (["llama-3.1-8b", "--gpu", "H200", "--kv-dtype", "int2"], "--kv-dtype 'int2' is not known"),
        (["smollm2-135m", *CPU, "--kv-dtype", "fp8"], "--kv-dtype is for GPUs"),
        (["smollm2-135m", *CPU, "-t", "2"], "--tensor-parallel is for GPUs"),
        (["smollm2-135m", *CPU, "--dtype", "int4"], "on a CPU the engine computes in bfloat16 or float32"),
        (["mixtral-8x7b", *CPU], "architecture 'mixtral' is not supported"),
        (["llama-3.1-70b", "--gpu", "H100"], "does not fit: .* per GPU, .* raise --tensor-parallel"),
        (["llama-3.1-8b", *CPU], r"does not fit: of 14\.4 GiB usable, .* 512 tokens; give more --memory, or take a"),
    ],
)
def test_a_mistake_is_one_line(plan: Callable[..., Any], arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as wrong:
        raise plan(*arguments).exception
    assert "\n" not in str(wrong.value)


def test_the_help_says_which_formats_a_cpu_has() -> None:
    words = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).stdout
    assert "On a CPU bfloat16, the default, or float32." in words


def test_a_rate_by_position_with_one_entry_is_a_rate() -> None:
    assert parse_acceptance("0.5").rate == 0.5
    assert parse_acceptance("0.5/0.25").tokens_per_round(4) == parse_acceptance("0.5").tokens_per_round(2)
