"""Where do other projects' tools live, and how is one run? Each has an environment of its own, made by `make tools`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fleet.errors import ConfigError, Unavailable

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
RUN_SECONDS = 240.0
SETTINGS = {"HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
"""No statistics about its use. Not HF_HUB_OFFLINE: AIPerf 0.13 takes no tokenizer from a folder then."""
LAST_WORDS = 4000
"""Characters of a failed tool's output that are shown."""


async def run_tool(environment: str, program: str, *arguments: str, folder: Path) -> str:
    """Run a tool's program in `folder`, which is also its home, to its end; what it printed.

    Raises `ConfigError` where it is not installed and `Unavailable` where it fails or does not end.
    """
    binary = TOOLS / environment / "bin" / program
    if not binary.exists():
        raise ConfigError(f"{program} is not installed: run 'make tools'")
    inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        str(binary),
        *arguments,
        cwd=folder,
        env={**inherited, **SETTINGS, "HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{program} did not end within {RUN_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    printed = output.decode(errors="replace")
    if process.returncode:
        raise Unavailable(f"{program} failed with exit code {process.returncode}: {printed[-LAST_WORDS:]}")
    return printed
