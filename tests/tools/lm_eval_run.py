"""lm-eval by its Python interface, in its own environment: OPTIONS TASKS ANSWERS, three files or folders.

Its command does the same after reading its own 14,000 task files, which takes longer than all that is tested here.
"""

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main(options: str, tasks: str, answers: str) -> None:
    """Evaluate with OPTIONS, a JSON object of `simple_evaluate`'s arguments; ANSWERS gets the samples by task."""
    known = TaskManager(include_path=tasks, include_defaults=False)
    results = simple_evaluate(**json.loads(Path(options).read_text()), task_manager=known, log_samples=True)
    Path(answers).write_text(json.dumps(results["samples"], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
