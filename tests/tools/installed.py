"""Where do the tools live, and how is one run? Each has an environment of its own, made by `make tools`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 240.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
"""No tool may need more than the router: not a model hub, not a place for statistics about its use."""


async def run_tool(tool: str, program: str, *arguments: str, folder: Path) -> str:
    """Run a tool's program in `folder` to its end; what it printed. Fails where it is missing or fails itself."""
    binary = Path(os.environ.get("FLEET_TOOLS", ROOT / ".tools")) / tool / "bin" / program
    if not binary.exists():
        pytest.fail(f"{tool} is not installed: run 'make tools'")
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        **OFFLINE,
        "HOME": str(folder),
        "OPENAI_API_KEY": "none",
    }
    process = await asyncio.create_subprocess_exec(
        str(binary),
        *arguments,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    printed = output.decode(errors="replace")
    assert process.returncode == 0, printed[-4000:]
    return printed
