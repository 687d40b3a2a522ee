import asyncio
import os
from pathlib import Path

import pytest

from deploy.bench import tool_process
from deploy.bench.tool_process import run_tool
from fleet.errors import ConfigError, Unavailable


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tool_process, "TOOLS", tmp_path / "tools")
    return tmp_path / "tools"


def install(tools: Path, script: str) -> None:
    program = tools / "its" / "bin" / "tool"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


async def test_a_tool_that_is_not_installed_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make tools"):
        await run_tool("nothing", "no-such-tool", folder=tmp_path)


async def test_a_tool_runs_at_home_in_its_folder_and_what_it_says_comes_back(tools: Path, tmp_path: Path) -> None:
    install(tools, 'echo "$1 in $PWD at $HOME"; echo twice >&2')
    assert await run_tool("its", "tool", "once", folder=tmp_path) == f"once in {tmp_path} at {tmp_path}\ntwice\n"


async def test_a_tool_knows_nothing_of_our_environment(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    install(tools, 'echo "${PYTHONPATH-nothing}"')
    assert await run_tool("its", "tool", folder=tmp_path) == "nothing\n"


async def test_the_last_words_of_a_failed_tool_are_shown(tools: Path, tmp_path: Path) -> None:
    install(tools, "echo too bad; exit 3")
    with pytest.raises(Unavailable, match="tool failed with exit code 3: too bad"):
        await run_tool("its", "tool", folder=tmp_path)


async def test_a_tool_has_to_end_in_time(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_process, "RUN_SECONDS", 0.0)
    install(tools, "sleep 600")
    with pytest.raises(Unavailable, match="tool did not end within 0 s"):
        await run_tool("its", "tool", folder=tmp_path)


async def test_a_tool_that_is_no_longer_wanted_ends_with_all_that_it_started(tools: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    install(tools, f"exec 3> {told}; sleep 600 & echo started >&3; wait")
    running = asyncio.create_task(run_tool("its", "tool", folder=tmp_path))
    with await asyncio.to_thread(told.open) as pipe:
        assert await asyncio.to_thread(pipe.readline) == "started\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.to_thread(pipe.read) == "", "it is open until the last of them has ended"
