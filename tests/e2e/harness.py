"""A real fleet in its own processes, driven the way a user drives it: the `fleet` command, HTTP and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from openai import AsyncOpenAI
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from deploy.admin_client import AdminClient
from deploy.bench.prompts import Prompt, load_prompts
from deploy.fleet_state import read_state
from fleet.config import resolve_secret
from fleet.errors import Unavailable

MODEL_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Fleet:
    """A running fleet and how to reach it."""

    folder: Path
    port: int
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=300, max_retries=0)

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a `fleet` command to its end."""
        command = [sys.executable, "-m", "deploy.cli", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=dict(self.environment), check=False
        )

    def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What `fleet canary NAME` asks of the fleet, without a process of its own."""
        with AdminClient(self.url, self._admin_token()) as admin:
            return dict(admin.command(name, arguments))

    @retry(stop=stop_after_delay(30), wait=wait_fixed(0.5), retry=retry_if_exception_type(Unavailable), reraise=True)
    def status(self) -> dict[str, Any]:
        """What `fleet status -o json` prints; a process of its own for every look would load a small machine."""
        with AdminClient(self.url, self._admin_token()) as admin:
            return dict(admin.status())

    def _admin_token(self) -> str:
        state = read_state(Path(self.environment["FLEET_STATE"])) if "FLEET_STATE" in self.environment else None
        return resolve_secret(state.admin_token) if state else self.environment["FLEET_ADMIN_TOKEN"]

    def path(self, name: str) -> dict[str, Any]:
        return next(path for path in self.status()["paths"] if path["path"] == name)

    def plan(self, name: str, plan: Mapping[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(plan)))
        return path


def start_fleet(folder: Path, config: Mapping[str, Any]) -> Fleet:
    """`fleet up --detach` with its own state folder; the caller ends it with `stop_fleet`."""
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    environment = os.environ | {"FLEET_STATE": str(folder / "state")}
    fleet = Fleet(folder, int(config["port"]), environment)
    done = fleet.run("up", "-f", str(file), "--detach", timeout=400)
    assert done.returncode == 0, f"fleet up failed:\n{done.stdout}\n{done.stderr}"
    return fleet


def stop_fleet(fleet: Fleet) -> None:
    done = fleet.run("down", timeout=120)
    assert done.returncode == 0, done.stderr


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll until something holds; fails the test when it never does."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.25)


def prompts(count: int) -> list[Prompt]:
    """The first prompts of the shipped set, from every category in turn."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in load_prompts():
        by_category.setdefault(prompt.category, []).append(prompt)
    mixed = [prompt for row in zip(*by_category.values(), strict=False) for prompt in row]
    return mixed[:count]


async def stream_text(client: AsyncOpenAI, content: str, **options: Any) -> str:
    """The text of one streamed chat completion; fails unless the stream ended properly."""
    stream = await client.chat.completions.create(
        model=MODEL_NAME, messages=[{"role": "user", "content": content}], stream=True, **options
    )
    text, finish = [], None
    async for event in stream:
        if event.choices:
            text.append(event.choices[0].delta.content or "")
            finish = event.choices[0].finish_reason or finish
    assert finish in ("stop", "length"), f"the stream ended without a finish_reason after {''.join(text)!r}"
    return "".join(text)


def on_path(path: str) -> dict[str, Any]:
    """Request options that pin a request to a path, outside the comparison."""
    return {"extra_headers": {"x-fleet-path": path}}


def share(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
