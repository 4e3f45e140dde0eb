"""The sidecar's own pages: metrics, probes, status and the landing page."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.export import runbook
from sidecar.export.exporter import Exporter, TooManyRenders
from sidecar.export.page import page

_PAGE_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": page.SECURITY_POLICY}
PROBES = frozenset({"/-/healthy", "/-/ready"})
"""The paths of the probes, whose responses reveal nothing."""

_Made = TypeVar("_Made")

_MOST_NAMES = 200  # in ?name[]=; further ones are ignored


@dataclass(frozen=True, slots=True)
class Pages:
    """What the server shows. The status is rendered at most once in ``every`` seconds.

    ``ready`` is whether every server has been polled once, successfully or not. It does not depend on vLLM, since a
    Pod whose sidecar is not ready gets no traffic.
    """

    exporter: Exporter
    status: Callable[[], dict[str, Any]]
    ready: Callable[[], bool]
    every: float = 0.0


def make_web(pages: Pages) -> web.Application:
    """The application; it accepts no bodies."""
    app = web.Application(client_max_size=0)
    status_text = at_most_every(pages.every, lambda: json.dumps(pages.status(), allow_nan=False))
    whole_text = at_most_every(pages.every, lambda: page.page(pages.status()))
    content_text = at_most_every(pages.every, lambda: page.content(pages.status()))

    async def metrics(request: web.Request) -> web.Response:
        try:
            rendered = await pages.exporter.render(
                request.headers.get("Accept", ""),
                request.headers.get("Accept-Encoding", ""),
                frozenset(request.query.getall("name[]", [])[:_MOST_NAMES]),
            )
        except TooManyRenders as error:
            return web.Response(status=503, text=f"{error}\n", headers={"Retry-After": "1"})
        return web.Response(body=rendered.body, headers=rendered.headers)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if pages.ready() else web.Response(status=503, text="not ready\n")

    async def status(_: web.Request) -> web.Response:
        return web.json_response(text=status_text(), headers={"Cache-Control": "no-store"})

    async def whole_page(_: web.Request) -> web.Response:
        return web.Response(text=whole_text(), content_type="text/html", headers=_PAGE_HEADERS)

    async def content(_: web.Request) -> web.Response:
        return web.Response(text=content_text(), content_type="text/html", headers=_PAGE_HEADERS)

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/status", status)
    app.router.add_get("/", whole_page)
    app.router.add_get("/content", content)
    for name, content_type in page.STATIC.items():
        app.router.add_get(f"/static/{name}", _file(page.static(name), content_type))
    _add_runbooks(app, pages)
    return app


def _add_runbooks(app: web.Application, pages: Pages) -> None:
    status = at_most_every(pages.every, pages.status)

    async def index(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(runbook.index)
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["name"].removesuffix(".md")
        text = await asyncio.to_thread(runbook.runbook, name, status())
        if text is None:
            raise web.HTTPNotFound
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    app.router.add_get("/runbooks/", index)
    app.router.add_get("/runbooks/{name}", one)


def _file(body: bytes, content_type: str) -> Handler:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, headers={"Cache-Control": "max-age=300"})

    return send


def at_most_every(
    seconds: float, make: Callable[[], _Made], clock: Callable[[], float] = time.monotonic
) -> Callable[[], _Made]:
    """Calls ``make`` and reuses its result for ``seconds``."""
    kept: list[tuple[float, _Made]] = []

    def recent() -> _Made:
        now = clock()
        if not kept or now - kept[0][0] >= seconds:
            kept[:] = [(now, make())]
        return kept[0][1]

    return recent
