"""Makes docs/dashboard.png: the dashboard of a simulated fleet after a rollback. `python -m tests.dashboard.picture`"""

from __future__ import annotations

import asyncio
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.async_api import async_playwright

from fleet.tokenizer import Tokenizer
from tests.canary.world import Behaviour, plan
from tests.dashboard.stage import TOKEN, FullWorld, serving, stage_app
from tests.dashboard.test_in_browser import FLAGS, Scheme, chromium, visit
from tests.tiny import tiny_tokenizer_folder

PICTURE = Path(__file__).parents[2] / "docs" / "dashboard.png"
STEPS = [{"weight": weight, "bake": "60s"} for weight in (5, 25, 50)] + [{"weight": 100}]
RAILS = plan()["guardrails"] | {"ttft_p95": {"max_increase": "15%"}, "realised_split": {}}


def rolled_back(folder: Path) -> FullWorld:
    """A canary that was twice as fast until its draft fell ill."""
    world = FullWorld(folder, requests_per_second=8.0)
    world.run(60)
    world.command("start", plan=plan(steps=STEPS, guardrails=RAILS))
    while world.rollout["weight_set"] < 25:
        world.run(2)
    world.run(45)
    world.behaviours["speculative"] = Behaviour(itl_seconds=0.044, acceptance=0.66)
    world.draft = "degraded"
    world.run_until("rolled_back")
    world.run(30)
    return world


async def take(size: tuple[int, int], scheme: Scheme = "light") -> bytes:
    """A PNG of the page's upper part."""
    folder = Path(tempfile.mkdtemp())
    app = stage_app(rolled_back(folder), Tokenizer.load(tiny_tokenizer_folder(folder)), admin_token=TOKEN)
    async with async_playwright() as playwright, serving(app) as url:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        async with visit(browser, f"{url}/dashboard#token={TOKEN}", width=size[0], scheme=scheme) as seen:
            await seen.has_plots()
            await seen.page.set_viewport_size({"width": size[0], "height": size[1]})
            await asyncio.sleep(1)  # until the bars have grown to their length
            picture = await seen.page.screenshot()
        await browser.close()
    return picture


def main() -> None:
    Image.open(io.BytesIO(asyncio.run(take((1280, 1500))))).quantize(128).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
