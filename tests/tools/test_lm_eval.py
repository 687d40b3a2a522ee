"""lm-eval against the router: log-likelihoods and answers are those of the model, computed without us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.bench.tool_process import RUN_SECONDS, run_tool
from tests.tools.conftest import ServedFleet
from tests.tools.oracle import Oracle

pytestmark = [pytest.mark.tools, pytest.mark.timeout(2 * RUN_SECONDS)]

RUN = Path(__file__).with_name("lm_eval_run.py")
TOKENS = 12
QUESTIONS = ("The fleet serves", "There was a river,", "A cheap proposer drafts a few tokens; the", "Größe, naïve")
CHOICES = ["a model", "the bridge over the town", "paths.", "москва"]
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
    fleet: ServedFleet, tasks: Path, model: str, route: str, names: tuple[str, ...], **extra: Any
) -> dict[str, list[dict[str, Any]]]:
    """The samples that lm-eval logged, by task and in the order of the documents."""
    options, answers = tasks.parent / "options.json", tasks.parent / "answers.json"
    arguments = f"model=tiny,base_url={fleet.url}/v1/{route},num_concurrent=2,max_length=512"
    options.write_text(json.dumps({"model": model, "model_args": arguments, "tasks": names, **extra}))
    await run_tool("lm_eval", "python", str(RUN), str(options), str(tasks), str(answers), folder=tasks.parent)
    samples: dict[str, list[dict[str, Any]]] = json.loads(answers.read_text())
    for each in samples.values():
        each.sort(key=lambda sample: int(sample["doc_id"]))
        assert [sample["doc"] for sample in each] == DOCUMENTS
    return samples


async def test_log_likelihoods_and_completions_are_the_models_own(
    speculative: ServedFleet, tasks: Path, oracle: Oracle
) -> None:
    samples = await evaluate(speculative, tasks, "local-completions", "completions", tuple(TASKS), batch_size=4)
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
        speculative, tasks, "local-chat-completions", "chat/completions", ("answering",), apply_chat_template=True
    )
    for sample in samples["answering"]:
        prompt = oracle.tokenizer.render_chat([{"role": "user", "content": sample["doc"]["question"]}])
        assert sample["resps"] == [[oracle.greedy(prompt, TOKENS)]]
    assert len(await speculative.recorder.finished()) == len(DOCUMENTS)
