"""Where do other projects' tools live, and how is one run? Each has an environment of its own, made by `make tools`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from fleet.errors import ConfigError, Unavailable

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
RUN_SECONDS = 900.0
"""A client that loads an inference engine first takes minutes where others want the cores too."""
SETTINGS = {
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "OPENAI_API_KEY": "none",
    "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "300",
    "AIPERF_SERVICE_START_TIMEOUT": "300",
}
"""No statistics about its use, and patience. Not HF_HUB_OFFLINE: AIPerf 0.13 takes no tokenizer from a folder then."""
LAST_WORDS = 4000
"""Characters of a failed tool's output that are shown."""


async def run_tool(environment: str, program: str, *arguments: str, folder: Path) -> str:
    """Run a tool's program in `folder`, which is also its home, to its end; what it printed.

    Raises `ConfigError` where it is not installed and `Unavailable` where it fails or does not end.
    """
    binary = TOOLS / environment / "bin" / program
    if not binary.exists():
        raise ConfigError(f"{program} is not installed: run 'make tools'")
    printed = folder / f"{environment}.log"
    exit_code = await _run(binary, arguments, printed)
    text = printed.read_text(errors="replace")
    if exit_code is None:
        raise Unavailable(f"{program} did not end within {RUN_SECONDS:g} s: {text[-LAST_WORDS:]}")
    if exit_code:
        raise Unavailable(f"{program} failed with exit code {exit_code}: {text[-LAST_WORDS:]}")
    return text


async def _run(binary: Path, arguments: tuple[str, ...], printed: Path) -> int | None:
    """The exit code, or None where the time was up; nothing that it started outlives it."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    with printed.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(binary),
            *arguments,
            cwd=printed.parent,
            env={**inherited, **SETTINGS, "HOME": str(printed.parent)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
