"""How is each proposer soaked in a process of its own? What the one before it left in memory is nobody's growth."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection

from deploy.bench.soak.outcome import Soaked
from deploy.bench.soak.pair import Load, soak
from fleet.errors import ConfigError, FleetError
from replicas.target_worker import WorkerSettings

LEAST_TURNS = 6
"""As many as it takes to tell growth."""
EXIT_SECONDS = 10.0
"""For a process that has told its result; one that has not is ended at once."""


def soak_alone(settings: WorkerSettings, load: Load, until: float, *, kills_draft: bool) -> Soaked:
    """Soak in a fresh process until a moment of the monotonic clock, which is one for all of a machine's processes.

    Raises ConfigError where that process could not, or died.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, settings, load, until, kills_draft))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
        process.join(EXIT_SECONDS)
    except EOFError as error:
        process.join()
        raise ConfigError(f"the soak's process died with exit code {process.exitcode}") from error
    finally:
        process.terminate()
        process.join()
    if not isinstance(found, Soaked):
        raise ConfigError(str(found))
    return found


def _work(sender: Connection, settings: WorkerSettings, load: Load, until: float, kills_draft: bool) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends drafts that it has started

    def goes_on(turns: int) -> bool:
        return turns < LEAST_TURNS or time.monotonic() < until

    try:
        sender.send(asyncio.run(soak(settings, load, goes_on, kills_draft=kills_draft)))
    except FleetError as error:
        sender.send(str(error))
    except KeyboardInterrupt:
        pass  # whoever asked for it says so
