"""The sidecar's own pages: metrics, probes, status, the page for people and the runbooks."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.export import runbook
from sidecar.export.declaration import Shown
from sidecar.export.exporter import Exporter
from sidecar.export.page import page
from sidecar.export.status import status
from sidecar.log import redacted

_PAGE_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": page.SECURITY_POLICY}
PROBES = frozenset({"/-/healthy", "/-/ready"})
"""The paths of the probes, whose responses reveal nothing."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Pages:
    """What the pages are made from: ``read`` is called at most once in ``every`` seconds, and each page made for it.

    ``vllm_page`` is vLLM's whole page if it is to be re-exported, else nothing. ``ready`` is whether vLLM has been
    polled once, successfully or not: a Pod whose sidecar is not ready gets no traffic, so it does not depend on vLLM.
    """

    read: Callable[[], Shown]
    ready: Callable[[], bool]
    vllm_page: Callable[[], bytes] = bytes
    every: float = 0.0


def make_web(pages: Pages) -> web.Application:
    """The application; it accepts no bodies."""
    app = web.Application(client_max_size=0)
    read = at_most_every(pages.every, pages.read)
    exporter = Exporter(read, pages.vllm_page)

    async def metrics(request: web.Request) -> web.Response:
        asked = request.headers
        body, headers = await exporter.render(asked.get("Accept", ""), asked.get("Accept-Encoding", ""))
        return web.Response(body=body, headers=headers)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if pages.ready() else web.Response(status=503, text="not ready\n")

    async def runbooks(request: web.Request) -> web.Response:
        name = request.match_info["name"].removesuffix(".md")
        text = await asyncio.to_thread(runbook.runbook, name, read())
        if text is None:
            raise web.HTTPNotFound
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/status", _made(read, _json, "application/json"))
    app.router.add_get("/", _made(read, page.page, "text/html"))
    app.router.add_get("/content", _made(read, page.content, "text/html"))
    app.router.add_get("/runbooks/{name:.*}", runbooks)
    for name, content_type in page.STATIC.items():
        app.router.add_get(f"/static/{name}", _file(page.static(name), content_type))
    return app


def _json(shown: Shown) -> str:
    """A recording's status lacks the address: these settings are not those that it was recorded with."""
    return json.dumps({"vllm_url": redacted(shown.settings.vllm_url), **status(shown)}, allow_nan=False)


def _made(read: Callable[[], Shown], make: Callable[[Shown], str], content_type: str) -> Handler:
    made: tuple[Shown | None, str] = (None, "")

    async def send(_: web.Request) -> web.Response:
        nonlocal made
        if (shown := read()) is not made[0]:
            made = (shown, make(shown))
        return web.Response(text=made[1], content_type=content_type, headers=_PAGE_HEADERS)

    return send


def _file(body: bytes, content_type: str) -> Handler:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, headers={"Cache-Control": "max-age=300"})

    return send


def at_most_every(
    seconds: float, make: Callable[[], _Result], clock: Callable[[], float] = time.monotonic
) -> Callable[[], _Result]:
    """Calls ``make`` and reuses its result for ``seconds``."""
    kept: list[tuple[float, _Result]] = []

    def recent() -> _Result:
        now = clock()
        if not kept or now - kept[0][0] >= seconds:
            kept[:] = [(now, make())]
        return kept[0][1]

    return recent
