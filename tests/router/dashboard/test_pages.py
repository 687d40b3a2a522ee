"""The dashboard's files: complete, cacheable, compressed, and without a word from or to anybody else."""

from __future__ import annotations

import gzip
import re

import pytest

TOKEN = "dashboard-secret"


async def assets_of(http) -> str:
    page = (await http.get("/dashboard")).text
    return "/" + re.findall(r'src="(.+)/main\.js"', page)[0]


async def test_the_page_is_open_holds_no_data_and_forbids_other_hosts(make_router) -> None:
    router = make_router(admin_token=TOKEN)
    async with router.http() as http:
        answer = await http.get("/dashboard")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert router.control.commands == []
    assert TOKEN not in answer.text


async def test_every_file_that_a_file_names_is_there(make_router) -> None:
    async with make_router().http() as http:
        base = await assets_of(http)
        page = (await http.get("/dashboard")).text
        waiting = {name.rpartition("/")[2] for name in re.findall(r'(?:src|href)="([^"]+)"', page)}
        seen: set[str] = set()
        while waiting - seen:
            name = min(waiting - seen)
            seen.add(name)
            answer = await http.get(f"{base}/{name}")
            assert answer.status_code == 200, name
            if name.endswith(".js"):
                waiting |= set(re.findall(r'from "\./([^"]+)"', answer.text))
    assert {"main.js", "figures.js", "style.css", "icon.svg"} <= seen


async def test_plotly_comes_from_its_own_package_compressed_once_and_kept_for_a_year(make_router) -> None:
    async with make_router().http() as http:
        url = f"{await assets_of(http)}/plotly.min.js"
        plain = await http.get(url, headers={"accept-encoding": "identity"})
        async with http.stream("GET", url, headers={"accept-encoding": "gzip"}) as answer:
            packed = b"".join([part async for part in answer.aiter_raw()])
    assert "plotly.js v" in plain.text[:200]
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "accept-encoding"
    assert "immutable" in answer.headers["cache-control"]
    assert gzip.decompress(packed) == plain.content
    assert len(packed) < 0.4 * len(plain.content)


@pytest.mark.parametrize("name", ["page.html", "pages.py", "..%2fpages.py", "secrets"])
async def test_nothing_else_is_handed_out(make_router, name: str) -> None:
    async with make_router().http() as http:
        assert (await http.get(f"{await assets_of(http)}/{name}")).status_code == 404


async def test_a_file_of_another_version_is_refused_rather_than_cached_under_its_address(make_router) -> None:
    async with make_router().http() as http:
        answer = await http.get("/dashboard/assets/0123456789ab/main.js")
    assert answer.status_code == 404
    assert "reload the page" in answer.json()["error"]["message"]


async def test_the_scripts_write_no_markup_and_know_no_other_host(make_router) -> None:
    async with make_router().http() as http:
        base = await assets_of(http)
        texts = [
            (await http.get(f"{base}/{name}.js")).text
            for name in (
                "main",
                "dom",
                "rollout",
                "evidence",
                "guardrails",
                "paths",
                "events",
                "plots",
                "figures",
                "session",
            )
        ]
    for text in texts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)
        assert set(re.findall(r"https?://[^\"/]+", text)) <= {"http://www.w3.org"}
