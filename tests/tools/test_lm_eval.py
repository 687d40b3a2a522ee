"""lm-eval against the router: log-likelihoods and answers are those of the model, computed without us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.bench.tool_process import run_tool
from tests.tools.conftest import ServedFleet
from tests.tools.oracle import Oracle

pytestmark = pytest.mark.tools

TOKENS = 12
QUESTIONS = ("The fleet serves", "There was a river,", "A cheap proposer drafts a few tokens; the", "Größe, naïve")
CHOICES = ("a model", "the bridge over the town", "paths.", "москва")
DOCUMENTS = [{"question": question, "choices": CHOICES, "label": 0, "answer": "-"} for question in QUESTIONS]
TASKS: dict[str, dict[str, Any]] = {
    "choosing": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    },
    "answering": {
        "output_type": "generate_until",
        "doc_to_text": "question",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n\n\n\n"], "max_gen_toks": TOKENS},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture
def oracle(model_folder: Path) -> Oracle:
    return Oracle(model_folder)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder that `--include_path` takes."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, task in TASKS.items():
        source = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(documents)}},
            "test_split": "test",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(source | task))
    return folder


async def evaluate(
    fleet: ServedFleet, tasks: Path, model: str, route: str, *extra: str, names: tuple[str, ...]
) -> dict[str, list[dict[str, Any]]]:
    """The samples that lm-eval logged, by task and in the order of the documents."""
    where = tasks.parent / "out"
    await run_tool(
        *("lm_eval", "lm-eval", "run", "--model", model),
        *("--model_args", f"model=tiny,base_url={fleet.url}/v1/{route},num_concurrent=2,max_length=512"),
        *("--include_path", str(tasks), "--tasks", *names),
        *("--output_path", str(where), "--log_samples", *extra),
        folder=tasks.parent,
    )
    samples = {}
    for name in names:
        (log,) = where.rglob(f"samples_{name}_*.jsonl")
        samples[name] = sorted(map(json.loads, log.read_text().splitlines()), key=lambda sample: int(sample["doc_id"]))
        assert len(samples[name]) == len(DOCUMENTS)
    return samples


async def test_log_likelihoods_and_completions_are_the_models_own(
    speculative: ServedFleet, tasks: Path, oracle: Oracle
) -> None:
    samples = await evaluate(
        *(speculative, tasks, "local-completions", "completions", "--batch_size", "4"), names=tuple(TASKS)
    )
    for sample in samples["choosing"]:
        question = sample["doc"]["question"]
        for choice, (logprob, is_greedy) in zip(CHOICES, sample["filtered_resps"], strict=True):
            expected = oracle.likelihood(question, f" {choice}")
            assert float(logprob) == pytest.approx(expected.logprob, abs=1e-3)
            assert str(is_greedy) == str(expected.is_greedy)
    for sample in samples["answering"]:
        question = sample["doc"]["question"]
        assert sample["resps"] == [[oracle.greedy(oracle.encode(question), TOKENS)]]
    answers = await speculative.recorder.finished()
    prompts = sum(len(answer.asked["prompt"]) for answer in answers)
    assert prompts == len(QUESTIONS) * (len(CHOICES) + 1), "nothing was asked twice"
    assert ("/tokenizer_info", 200) in speculative.recorder.other_routes, "it used the server's own tokenizer"


async def test_chats_are_answered_as_the_models_own_template_puts_them(
    speculative: ServedFleet, tasks: Path, oracle: Oracle
) -> None:
    samples = await evaluate(
        *(speculative, tasks, "local-chat-completions", "chat/completions", "--apply_chat_template"),
        names=("answering",),
    )
    for sample in samples["answering"]:
        prompt = oracle.tokenizer.render_chat([{"role": "user", "content": sample["doc"]["question"]}])
        assert sample["resps"] == [[oracle.greedy(prompt, TOKENS)]]
    assert len(await speculative.recorder.finished()) == len(DOCUMENTS)
