"""How does an arm come to life? A target for each set of tapped states, an engine for each arm, drafts as processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from deploy.bench.bare_stream import loop_in_thread
from deploy.bench.proposers.plan import Arm
from deploy.bench.proposers.probe import Notes, ProposerProbe, TimedRunner
from fleet.clock import SystemClock
from fleet.config import HEAD_METHODS, DrillConfig, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import DraftUnavailable
from replicas.draft_worker import DraftSettings
from replicas.engine.loop import Engine
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import Speculator
from replicas.heads.loading import read_head
from replicas.proposing import Place, Proposing, in_process, remote_draft
from replicas.speculation.proposer import Proposer, ProposerHealth
from replicas.target_model import TargetHead, TargetModel, load_target

CONNECT_SECONDS = 180.0
GRACE_SECONDS = 10.0
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Served:
    """An arm that answers: its engine is stepped by whoever measures."""

    engine: Engine
    runner: TimedRunner
    probe: ProposerProbe | None
    target: TargetModel

    def take_notes(self) -> Notes:
        """Notes on everything from now on."""
        notes = Notes()
        self.runner.notes = notes
        if self.probe is not None:
            self.probe.notes = notes
        return notes


@dataclass(slots=True)
class Stage:
    """What the arms share. Engines on one target share its cache, so only one of them may have work at a time."""

    model: ModelConfig
    config: EngineConfig
    say: Callable[[str], None]
    loop: asyncio.AbstractEventLoop
    exits: ExitStack
    spawn: Callable[[DraftSettings], subprocess.Popen[bytes]]
    _targets: dict[tuple[int, ...], TargetModel] = field(default_factory=dict)

    def serve(self, arm: Arm) -> Served:
        """Load what is missing. Raises ConfigError, and DraftUnavailable where a draft process does not come up."""
        self.say(f"preparing {arm.name}")
        if arm.speculative is None:
            return self._served(self._target(None), None)
        head = read_head(arm.speculative, self.say) if arm.speculative.method in HEAD_METHODS else None
        target = self._target(head)
        if arm.speculative.method == "draft_model":
            return self._served(target, self._remote(arm.speculative, arm.drill, target))
        place = Place(target, self.config.max_num_seqs, arm.drill, SystemClock())
        return self._served(target, in_process(arm.speculative, head, place))

    def _target(self, head: TargetHead | None) -> TargetModel:
        layers = self._plain().model.config.num_hidden_layers
        taps = head.taps(layers) if head is not None else ()
        if taps not in self._targets:
            self._targets[taps] = load_target(self.model, self.config, self.say, head)
        return self._targets[taps]

    def _plain(self) -> TargetModel:
        if () not in self._targets:
            self._targets[()] = load_target(self.model, self.config, self.say)
        return self._targets[()]

    def _remote(self, config: SpeculativeConfig, drill: DrillConfig | None, target: TargetModel) -> Proposing:
        starting = remote_draft(config, HOST, self.model, target, SystemClock())
        proposing = asyncio.run_coroutine_threadsafe(starting, self.loop).result()
        self.exits.callback(lambda: asyncio.run_coroutine_threadsafe(proposing.close(), self.loop).result())
        assert proposing.verify_address is not None
        draft = self.spawn(DraftSettings(self.model, config, self.config, proposing.verify_address, drill))
        self.exits.callback(_end, draft)
        _wait_for(draft, proposing.proposer)
        return proposing

    def _served(self, target: TargetModel, proposing: Proposing | None) -> Served:
        clock = SystemClock()
        runner = TimedRunner(target.model, Sampler(target.vocab_size, target.tokenizer.eos_token_ids))
        probe = speculator = None
        if proposing is not None:
            probe = ProposerProbe(proposing.proposer, proposing.reader)
            reader = probe if proposing.reader is not None else None
            speculator = Speculator(probe, proposing.policy, target.vocab_size, clock, reader)
        engine = Engine(target.model, target.tokenizer, self.config, runner=runner, speculator=speculator, clock=clock)
        return Served(engine, runner, probe, target)


def start_draft(settings: DraftSettings) -> subprocess.Popen[bytes]:
    """A draft worker in a process of its own, which inherits this thread's cores."""
    text = TypeAdapter(DraftSettings).dump_json(settings).decode()
    command = [sys.executable, "-m", "replicas.draft_worker", "--settings", text]
    return subprocess.Popen(command)


@contextmanager
def stage(
    model: ModelConfig,
    config: EngineConfig,
    say: Callable[[str], None],
    spawn: Callable[[DraftSettings], subprocess.Popen[bytes]] = start_draft,
) -> Iterator[Stage]:
    """An empty stage; draft processes end with it."""
    with loop_in_thread() as loop, ExitStack() as exits:
        yield Stage(model, config, say, loop, exits, spawn)


def _wait_for(draft: subprocess.Popen[bytes], proposer: Proposer) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while proposer.state().health != ProposerHealth.HEALTHY:
        if draft.poll() is not None:
            raise DraftUnavailable(f"the draft process ended with exit code {draft.returncode}")
        if time.monotonic() > end:
            raise DraftUnavailable(f"the draft process did not connect within {CONNECT_SECONDS:.0f} s")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
