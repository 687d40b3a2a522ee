"""The dashboard as a person meets it: in a real browser, over a real router app and controller of a simulated fleet."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from canary.drift_watch import JUDGE_SECONDS
from canary.rollout_state import State
from canary.verdict import Level
from deploy import render
from fleet.errors import Unavailable
from fleet.metrics import DRAFT_HEALTH
from fleet.tokenizer import Tokenizer
from tests.canary.evidence import matrix_evidence
from tests.canary.world import Behaviour, plan
from tests.dashboard.stage import TOKEN, FullWorld, serving, stage_app
from tests.tiny import tiny_tokenizer_folder

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PATIENCE_MS = 60_000
"""The machine may be busy; a page that is right answers much sooner."""
Scheme = Literal["light", "dark"]
THROUGHPUT = "document.querySelector('[data-figure=throughput] .plot')"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """The browser that `make` found or installed, or the system's."""
    beside_python = Path(__file__).parents[2] / ".venv" / "bin" / "chromium"
    return str(beside_python) if beside_python.exists() else shutil.which("chromium")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed; `make .venv/bin/chromium` fetches it")
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=2 * PATIENCE_MS)
        yield launched
        await launched.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_folder(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def world(tmp_path: Path) -> FullWorld:
    return FullWorld(tmp_path)


@dataclass
class Visit:
    """A page, what it complained of, and whom it asked."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    async def sees(self, selector: str, text: str) -> None:
        await expect(self.page.locator(selector)).to_contain_text(text)

    async def has_plots(self) -> None:
        await expect(self.page.locator(".main-svg").first).to_be_visible()

    async def shows_points(self, count: int) -> None:
        """So many points have come in, and are drawn."""
        await self.sees("#resolution", f": {count} of at most")
        assert await self.page.evaluate(f"{THROUGHPUT}.data[0].x.length") == count


@asynccontextmanager
async def visit(browser: Browser, url: str, *, width: int = 1280, scheme: Scheme = "light") -> AsyncIterator[Visit]:
    expect.set_options(timeout=PATIENCE_MS)
    context = await browser.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    visit = Visit(await context.new_page())
    visit.page.on("console", lambda message: visit.complaints.append(f"{message.type}: {message.text}"))
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
    # The load event waits for plotly.js, which the page itself does not.
    await visit.page.goto(url, wait_until="commit")
    yield visit
    await context.close()


def start(world: FullWorld, seconds: float = 10.0, **changes: object) -> None:
    """A rollout that has run for so long, on a fleet that was there before."""
    world.run(12)
    world.command("start", plan=plan(**changes))
    world.run(seconds)


def become_stale(world: FullWorld) -> None:
    """Replicas that were measured otherwise have come, and the controller has looked at them."""
    world.fingerprint = (("model.weights", "<b>other</b>"),)
    world.run(JUDGE_SECONDS + 1)


async def test_a_rollout_is_seen_to_step_and_to_be_rolled_back_with_its_reason(browser, tokenizer, world) -> None:
    start(world)
    async with (
        serving(stage_app(world, tokenizer, admin_token=TOKEN)) as url,
        visit(browser, f"{url}/dashboard") as seen,
    ):
        await seen.page.fill("#token", TOKEN)
        await seen.page.get_by_role("button", name="Sign in").click()
        await seen.sees("#state", "▶ baking")
        await seen.sees('.weight[data-kind="set"]', "5.0 %")
        await seen.sees('.step[aria-current="step"]', "5 %")

        while world.rollout["weight_set"] < 50:
            world.run(4)
        await seen.sees('.weight[data-kind="set"]', "50.0 %")
        await seen.sees('.step[aria-current="step"]', "50 %")

        world.behaviours["speculative"] = Behaviour(itl_seconds=0.08, acceptance=0.7)
        world.draft = "degraded"
        world.run_until("rolled_back")
        world.run(6)
        await seen.sees("#state", "✖ rolled back")
        await seen.sees("#reason", world.rollout["reason"])
        await seen.sees('.weight[data-kind="set"]', "0.0 %")
        await seen.sees("#events tr:has-text('rolled_back (itl_p95')", "weight 50 % -> 0 %")
        verdict = seen.page.locator("#guardrails tr", has=seen.page.get_by_role("rowheader", name="itl_p95"))
        await expect(verdict).to_contain_text("✖ fail")
        await expect(verdict.get_by_role("meter")).to_have_attribute("aria-valuenow", "100")
        await seen.sees("#paths tr:has-text('speculative')", "◐ degraded")
        await seen.has_plots()
        await expect(seen.page.locator('[data-figure="itl"] .annotation-text', has_text="✖")).to_have_count(1)
        await expect(seen.page.locator('[data-figure="positions"] .bars .point')).to_have_count(4)
    assert seen.complaints == []
    assert seen.hosts == {urlsplit(url).netloc}


async def test_the_past_and_the_sign_in_survive_a_reload(browser, tokenizer, world) -> None:
    start(world, 40)
    link = f"/dashboard#token={TOKEN}"
    async with serving(stage_app(world, tokenizer, admin_token=TOKEN)) as url, visit(browser, url + link) as seen:
        await seen.has_plots()
        assert TOKEN not in seen.page.url
        await seen.shows_points(10)
        world.run(10)
        await seen.shows_points(12)
        await seen.page.reload(wait_until="commit")
        await seen.has_plots()
        await seen.shows_points(12)
    assert seen.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
async def test_the_page_fits_its_screen_and_is_accessible(
    browser, tokenizer, world, width: int, scheme: Scheme
) -> None:
    start(world, 30, evidence=matrix_evidence(renew=f"fleet bench matrix -o {'x' * 90}").model_dump(mode="json"))
    become_stale(world)
    link = f"/dashboard#token={TOKEN}"
    app = stage_app(world, tokenizer, admin_token=TOKEN)
    async with serving(app) as url, visit(browser, url + link, width=width, scheme=scheme) as seen:
        await seen.has_plots()
        await expect(seen.page.locator("#evidence-state")).to_be_visible()
        await seen.page.get_by_text("Replicas", exact=True).last.click()
        wide = await seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide == 0
        found = await Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


async def test_evidence_that_no_longer_holds_is_told_in_words_with_the_command_that_renews_it(
    browser, tokenizer, world
) -> None:
    evidence = matrix_evidence()
    start(world, evidence=evidence.model_dump(mode="json"))
    link = f"/dashboard#token={TOKEN}"
    async with serving(stage_app(world, tokenizer, admin_token=TOKEN)) as url, visit(browser, url + link) as seen:
        panel = seen.page.get_by_role("region", name="Evidence")
        await expect(panel).to_contain_text("✔ still holds")
        await expect(panel.get_by_text("Measure again")).to_be_hidden()
        become_stale(world)
        await expect(panel).to_contain_text("▲ stale")
        await expect(panel.get_by_role("listitem")).to_contain_text(
            "speculative: model.weights was abc, is <b>other</b>"
        )
        await expect(panel.get_by_text("Measure again")).to_contain_text(evidence.renew)
        world.command("abort", reason="enough")
        world.run(6)
        await expect(panel).to_be_hidden()
    assert seen.complaints == []


async def test_what_others_wrote_stays_text(browser, tokenizer, world) -> None:
    start(world)
    reason = "<img src=x onerror=alert(1)><b>late</b>"
    world.command("abort", reason=reason)
    world.run(6)
    link = f"/dashboard#token={TOKEN}"
    async with serving(stage_app(world, tokenizer, admin_token=TOKEN)) as url, visit(browser, url + link) as seen:
        await seen.sees("#reason", reason)
        await seen.has_plots()
        assert await seen.page.locator("#board img, #reason b, .annotation-text b").count() == 0
    assert seen.complaints == []


async def test_a_wrong_token_and_a_controller_that_is_away_are_told_in_words(
    browser, tokenizer, world, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(6)
    app, link = stage_app(world, tokenizer, admin_token=TOKEN), "/dashboard#token=guessed"
    async with serving(app) as url, visit(browser, url + link) as seen:
        await seen.sees("#sign-in-reason", "not accepted")
        await seen.page.fill("#token", TOKEN)
        await seen.page.keyboard.press("Enter")
        await seen.sees("#state", "no rollout")
        await seen.sees("#freshness", "live")

        def away(name: str, arguments: object) -> None:
            raise Unavailable("the controller cannot be reached")

        with monkeypatch.context() as patch:
            patch.setattr(world.controller, "command", away)
            await seen.sees("#freshness", "the controller cannot be reached; trying again")
        await seen.sees("#freshness", "live")


async def test_numbers_read_as_they_do_in_the_terminal(browser, tokenizer, world) -> None:
    values = [0.0, 0.12345, -0.0421, 1.5, -0.0004, 0.0312, 0.9996]
    units = ["percent", "points", "seconds", "ratio"]
    seconds = [0.4, 59.6, 61, 3599.4, 7325]
    script = """async ([values, units, seconds]) => {
        const main = document.querySelector("script[src$='main.js']").src;
        const { amount, duration } = await import(main.replace("main.js", "format.js"));
        return [units.map((unit) => values.map((value) => amount(value, unit))), seconds.map(duration)];
    }"""
    async with serving(stage_app(world, tokenizer)) as url, visit(browser, f"{url}/dashboard") as seen:
        await expect(seen.page.locator("#sign-in")).to_be_visible()
        amounts, durations = await seen.page.evaluate(script, [values, units, seconds])
    assert amounts == [[render.amount(value, unit) for value in values] for unit in units]
    assert durations == [render.duration(value) for value in seconds]


async def test_every_sign_is_a_shape_that_the_font_has(browser, tokenizer, world) -> None:
    names = [[*State], [level.label for level in Level], [*DRAFT_HEALTH], ["holds", "stale"]]
    script = """async (names) => {
        const main = document.querySelector("script[src$='main.js']").src;
        const { ofState, ofVerdict, ofHealth, ofEvidence } = await import(main.replace("main.js", "words.js"));
        const paper = document.createElement("canvas").getContext("2d");
        const drawn = (text) => {
            paper.reset();
            paper.font = getComputedStyle(document.body).font;
            paper.fillText(text, 10, 40);
            return paper.canvas.toDataURL();
        };
        const kinds = [ofState, ofVerdict, ofHealth, ofEvidence];
        const signs = kinds.flatMap((of, kind) => names[kind].map((name) => of(name).sign));
        return [signs, signs.filter((sign) => drawn(sign) === drawn("\\uE123"))];
    }"""
    async with serving(stage_app(world, tokenizer)) as url, visit(browser, f"{url}/dashboard") as seen:
        await expect(seen.page.locator("#sign-in")).to_be_visible()
        signs, missing = await seen.page.evaluate(script, names)
    assert "?" not in signs
    assert missing == [], "drawn like a character that no font has"
