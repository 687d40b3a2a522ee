"""What does the server say of itself while a block runs? Its public metrics, and its host memory where local."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from deploy.admin_client import AdminClient
from deploy.bench.asking import headers_of
from deploy.evidence.measured import ServerFigures
from fleet.errors import FleetError

LOOK_SECONDS = 1.0
COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "rounds": "vllm:spec_decode_num_drafts_total",
    "empty_rounds": "fleet_rounds_empty_total",
    "late_rounds": "fleet_rounds_late_total",
}
TIMES = {
    "draft_seconds": "fleet_draft_seconds",
    "verify_seconds": "fleet_verify_seconds",
    "accept_seconds": "fleet_accept_seconds",
    "wire_seconds": "fleet_wire_seconds",
}
KV_USAGE = "vllm:kv_cache_usage_perc"
GPU_MEMORY = "fleet_gpu_memory_bytes"

Scrape = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Look:
    scrape: Scrape
    memory_bytes: int | None


class LocalMemory:
    """Whose host memory is a path's, in a fleet on this machine?"""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def processes(self, path: str) -> list[psutil.Process]:
        """The target and draft processes of a path; none where the fleet does not say."""
        try:
            paths = self._admin.status()["paths"]
        except FleetError:
            return []
        replicas = [replica for item in paths if item["path"] == path for replica in item["replicas"]]
        found = []
        for pid in [pid for replica in replicas for pid in (replica["pid"], replica["draft_pid"]) if pid]:
            with suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found


class MetricsProbe:
    """Scrapes `/metrics`; a server that has none, or not these, leaves the figures unknown."""

    def __init__(
        self, http: httpx.AsyncClient, memory: LocalMemory | None, *, settle_seconds: float, key: str | None
    ) -> None:
        """`memory`: None where the fleet is not on this machine. `settle_seconds`: how long after a block its last
        events may still be on their way into the counters."""
        self._http = http
        self._memory = memory
        self._settle_seconds = settle_seconds
        self._headers = headers_of(key)

    async def watch(self, path: str | None, is_over: asyncio.Event) -> ServerFigures:
        """What the server says of a path from now until a little after the event is set.

        Of requests that the router sends here and there nothing is known: no figure of one path is theirs.
        """
        if path is None:
            await is_over.wait()
            await asyncio.sleep(self._settle_seconds)
            return ServerFigures()
        processes = [] if self._memory is None else await asyncio.to_thread(self._memory.processes, path)
        looks = [await self._look(path, processes)]
        while not is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await is_over.wait()
            looks.append(await self._look(path, processes))
        await asyncio.sleep(self._settle_seconds)
        looks.append(await self._look(path, processes))
        return figures_of(looks)

    async def _look(self, path: str, processes: Sequence[psutil.Process]) -> _Look:
        try:
            response = await self._http.get("/metrics", headers=self._headers)
        except httpx.RequestError:
            return _Look({}, None)
        text = response.text if response.is_success else ""
        return _Look(samples_of(path, text), _resident(processes))


def samples_of(path: str, text: str) -> dict[str, float]:
    """The values of a scrape that are about a path, or about a server that knows no paths; label sets are summed."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("path", path) == path:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
    except ValueError:
        return {}
    return found


def figures_of(looks: Sequence[_Look]) -> ServerFigures:
    """What changed between the first and the last look, and what was seen on the way."""
    scrapes = [look.scrape for look in looks]
    memory = [look.memory_bytes for look in looks if look.memory_bytes is not None]
    gpu_memory = _over(scrapes, GPU_MEMORY, max)
    counted = {field: _increase(scrapes, name) for field, name in COUNTERS.items()}
    # The first look shows steps and rounds of what ran before.
    times = {field: _over(scrapes[1:], name, _mean_of_positive) for field, name in TIMES.items()}
    if counted["rounds"] == 0:
        # The gauges still show the last round of long ago.
        times["draft_seconds"] = times["wire_seconds"] = None
    return ServerFigures(
        kv_usage=_over(scrapes, KV_USAGE, max),
        preemptions=counted["preemptions"],
        draft_seconds=times["draft_seconds"],
        verify_seconds=times["verify_seconds"],
        wire_seconds=times["wire_seconds"],
        accept_seconds=times["accept_seconds"] or None,
        rounds=counted["rounds"],
        empty_rounds=counted["empty_rounds"],
        late_rounds=counted["late_rounds"],
        memory_bytes=max(memory, default=None),
        gpu_memory_bytes=round(gpu_memory) if gpu_memory else None,
    )


def _increase(scrapes: Sequence[Scrape], name: str) -> int | None:
    if name not in scrapes[0] or name not in scrapes[-1]:
        return None
    return max(0, round(scrapes[-1][name] - scrapes[0][name]))


def _over(scrapes: Sequence[Scrape], name: str, combine: Callable[[list[float]], float]) -> float | None:
    values = [scrape[name] for scrape in scrapes if name in scrape]
    return combine(values) if values else None


def _mean_of_positive(values: Iterable[float]) -> float:
    """A path that has not yet had a round says 0."""
    positive = [value for value in values if value > 0]
    return sum(positive) / len(positive) if positive else 0.0


def _resident(processes: Sequence[psutil.Process]) -> int | None:
    sizes = []
    for process in processes:
        with suppress(psutil.Error):
            sizes.append(int(process.memory_info().rss))
    return sum(sizes) if sizes else None
