"""Makes docs/matrix.png from the page of a load matrix: `python -m tests.deploy.evidence.picture FOLDER/report.html`"""

from __future__ import annotations

import argparse
import asyncio
import io
from pathlib import Path

from PIL import Image
from playwright.async_api import async_playwright

from tests.dashboard.test_in_browser import FLAGS, chromium

PICTURE = Path(__file__).parents[3] / "docs" / "matrix.png"
SIZE = {"width": 1280, "height": 1800}


async def take(url: str) -> bytes:
    """A PNG of the page's upper part."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = await browser.new_page(viewport=SIZE)
        await page.goto(url)
        await page.wait_for_selector(".main-svg")
        picture = await page.screenshot()
        await browser.close()
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    Image.open(io.BytesIO(asyncio.run(take(parser.parse_args().page.resolve().as_uri())))).quantize(128).save(
        PICTURE, optimize=True
    )


if __name__ == "__main__":
    main()
