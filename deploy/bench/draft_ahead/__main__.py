"""The command: measures draft-ahead with target and draft on one core each, then simulates machines of their own."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.bench.document import present
from deploy.bench.draft_ahead.recording import Recording, record
from deploy.bench.draft_ahead.simulation import Times
from deploy.bench.draft_ahead.tables import measured_table, simulated_table
from deploy.bench.options import count
from deploy.bench.prompts import SHIPPED_PROMPTS, Prompt, load_prompts
from deploy.bench.proposers.arms import Stage, stage, start_draft
from deploy.bench.proposers.block import Measured, requests_of, run_block
from deploy.bench.proposers.plan import BASELINE, Arm, Cell, Place, places, prompts_of
from deploy.bench.verify_cost import medians, step_samples
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from replicas.draft_model import load_draft
from replicas.draft_worker import DraftSettings

MARKS = "bench-draft-ahead"
SHIPPED_DRAFT = Path("deploy/models/draft")
CONTEXT_TOKENS = 2048
WARM_UP_TOKENS = 16
ROUND_TRIPS_MS = (0.0, 0.5, 2.0)
VERIFY_REPETITIONS = 8
SERIAL, AHEAD = "serial", "ahead"


def main() -> None:
    """Hit rate of draft-ahead and the round time it hides: measured, and simulated for separate machines."""
    arguments = _parser().parse_args()
    present(lambda: _tables(arguments), arguments.into, MARKS)


def _tables(arguments: argparse.Namespace) -> list[str]:
    target_core, draft_core = _two_cores()

    def start_on_its_core(settings: DraftSettings) -> subprocess.Popen[bytes]:
        with _on_core(draft_core):
            return start_draft(settings)

    engine = EngineConfig(device="cpu", max_num_seqs=1, kv_cache_tokens=CONTEXT_TOKENS, threads=1)
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    prompts = load_prompts(arguments.prompts_file)
    with _on_core(target_core), stage(model, engine, _say, start_on_its_core) as shared:
        blocks = _measure(shared, arguments, prompts)
        recordings, verify = _record(shared, arguments, prompts)
    traces = [item.trace for item in recordings if item.trace.answer_length > 2 * (arguments.draft_tokens + 1)]
    if not traces:
        raise ConfigError("every recorded answer is too short to simulate: raise --tokens or --traces")
    draft = statistics.median(recording.draft_seconds for recording in recordings)
    every = [Times(verify, draft, milliseconds / 1000) for milliseconds in ROUND_TRIPS_MS]
    loopback = Times(verify, draft, 0.0)
    return [
        *measured_table(blocks, SERIAL, AHEAD, loopback),
        *simulated_table(traces, every, arguments.draft_tokens),
    ]


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """This thread, and whatever threads and processes it starts meanwhile, run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _measure(shared: Stage, arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> list[Measured]:
    """Blocks of one answer each, in turns: the baseline, drafting in turn with the target, and ahead of it."""
    serial = _speculative(arguments, draft_ahead=False)
    arms = [Arm(BASELINE), Arm(SERIAL, serial), Arm(AHEAD, _speculative(arguments, draft_ahead=True))]
    served = {arm.name: shared.serve(arm) for arm in arms}
    cell = Cell(0.0, 1, arguments.category)

    def ask(place: Place, tokens: int) -> Measured:
        arm = served[place.arm.name]
        return run_block(arm, place, requests_of(prompts_of(prompts, place, 1), place, arm.target.tokenizer, tokens))

    for arm in arms:
        ask(Place(0, cell, arm), WARM_UP_TOKENS)
    blocks = []
    for place in places(arms, [cell], arguments.rounds):
        _say(f"round {place.round + 1} of {arguments.rounds}: {place.arm.name}")
        blocks.append(ask(place, arguments.tokens))
    return blocks


def _record(
    shared: Stage, arguments: argparse.Namespace, prompts: Sequence[Prompt]
) -> tuple[list[Recording], tuple[float, ...]]:
    """Answers with the draft's choices, and the target's seconds by rows."""
    baseline = shared.serve(Arm(BASELINE))
    draft = load_draft(shared.model, _speculative(arguments, draft_ahead=True), shared.config).engine
    cell, recordings = Cell(0.0, 1, arguments.category), []
    for number in range(arguments.traces):
        _say(f"recording answer {number + 1} of {arguments.traces}")
        place = Place(number, cell, Arm(BASELINE))
        chosen = prompts_of(prompts, place, 1)
        request = requests_of(chosen, place, baseline.target.tokenizer, arguments.tokens)[0]
        recordings.append(record(baseline, draft, request))
    rows = range(1, arguments.draft_tokens + 2)
    seconds = medians(step_samples(baseline.target.model, [1], rows, arguments.tokens, VERIFY_REPETITIONS))
    return recordings, tuple(seconds[1, length] for length in rows)


def _speculative(arguments: argparse.Namespace, *, draft_ahead: bool) -> SpeculativeConfig:
    keys: dict[str, object] = {"layers": arguments.layers} if arguments.layers else {"model": str(arguments.draft)}
    fixed = {"method": "draft_model", "adaptive": False, "draft_threads": 1, "draft_ahead": draft_ahead}
    return SpeculativeConfig.model_validate({**keys, **fixed, "num_speculative_tokens": arguments.draft_tokens})


def _two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError("draft-ahead is measured on two cores, and this process may use only one")
    return cores[0], cores[1]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.draft_ahead", description=main.__doc__)
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL)
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    drafts = parser.add_mutually_exclusive_group().add_argument
    drafts("--draft", type=Path, default=SHIPPED_DRAFT, help="folder of a trained draft, by default the shipped one")
    drafts("--layers", type=count, help="draft with so many of the target's own first layers instead")
    add("--draft-tokens", type=count, default=4)
    add("--category", default="chat")
    add("--prompts-file", type=Path, default=SHIPPED_PROMPTS)
    add("--tokens", type=count, default=256, help="most tokens of an answer")
    add("--rounds", type=count, default=6, help="answers on each arm")
    add("--traces", type=count, default=4, help="answers recorded for the simulation")
    add("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    main()
