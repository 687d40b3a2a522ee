"""Which files make the dashboard, and how are they sent? The page asks the admin API for everything that it shows."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Self

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from fleet.errors import NotFound

PAGE = "page.html"
PLOTLY = "plotly.min.js"
MEDIA_TYPES: Mapping[str, str] = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
YEAR_SECONDS = 365 * 24 * 3600

# Nothing from anywhere else, no inline script. plotly.js positions its labels by style attributes.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# The address has a digest of the content in it, so a browser need never ask again.
ASSET_HEADERS = {
    "cache-control": f"public, max-age={YEAR_SECONDS}, immutable",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, ready to be sent in either form."""

    media_type: str
    plain: bytes
    gzipped: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        return cls(MEDIA_TYPES[name.rpartition(".")[2]], content, gzip.compress(content, mtime=0))


class DashboardPages:
    """The page at /dashboard and its files below it, one folder per state of the files."""

    def __init__(self) -> None:
        contents = {
            item.name: item.read_bytes()
            for item in sorted(files("router.dashboard").joinpath("static").iterdir(), key=lambda item: item.name)
        }
        page = contents.pop(PAGE).decode()
        self._assets = {name: Asset.of(name, content) for name, content in contents.items()}
        self._tag = _digest(page.encode(), *contents.values(), version("plotly").encode())
        self._page = Template(page).substitute(assets=f"dashboard/assets/{self._tag}")

    def routes(self) -> list[Route]:
        return [Route("/dashboard", self.page), Route("/dashboard/assets/{tag}/{name}", self.asset)]

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=PAGE_HEADERS)

    async def asset(self, request: Request) -> Response:
        """One file. NotFound also in any version but this one, whose content must not be cached under its address."""
        tag, name = request.path_params["tag"], request.path_params["name"]
        if name == PLOTLY and name not in self._assets:
            # Compressing 5 MB takes longer than a token may wait, so it is done once, beside the event loop.
            self._assets[name] = await asyncio.to_thread(_plotly)
        if tag != self._tag or name not in self._assets:
            raise NotFound(f"the dashboard has no file '{name}' of version '{tag}'; reload the page")
        asset = self._assets[name]
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.plain, media_type=asset.media_type, headers=ASSET_HEADERS)
        headers = ASSET_HEADERS | {"content-encoding": "gzip"}
        return Response(asset.gzipped, media_type=asset.media_type, headers=headers)


def _plotly() -> Asset:
    return Asset.of(PLOTLY, files("plotly").joinpath("package_data", PLOTLY).read_bytes())


def _digest(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:12]
