"""The sidecar's own HTTP server: the metrics page, probes, status and the landing page."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.export.exporter import Exporter
from sidecar.export.page import page

_PAGE_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": page.SECURITY_POLICY}
_QUERY_NAMES = 200  # more than that in ?name[]= and it is no selection


@dataclass(frozen=True, slots=True)
class Pages:
    """What the server shows; each is called for every request and must be quick, or wait elsewhere.

    ``own_series`` are vLLM's own, for the end of our metrics page; empty where they are not wanted.
    ``ready`` tells whether every server has been polled once, well or not: it says nothing of vLLM, since a Pod whose
    sidecar is not ready gets no traffic.
    """

    exporter: Exporter
    own_series: Callable[[], Awaitable[bytes]]
    status: Callable[[], dict[str, Any]]
    ready: Callable[[], bool]


def make_web(pages: Pages) -> web.Application:
    """The application; it takes no bodies."""
    app = web.Application(client_max_size=0)

    async def metrics(request: web.Request) -> web.Response:
        names = request.query.getall("name[]", [])[:_QUERY_NAMES]
        own = b"" if names else await pages.own_series()
        rendered = pages.exporter.render(
            request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", ""), frozenset(names), own=own
        )
        return web.Response(body=rendered.body, headers=rendered.headers)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if pages.ready() else web.Response(status=503, text="not ready\n")

    async def status(_: web.Request) -> web.Response:
        return web.json_response(pages.status(), dumps=_dumps, headers={"Cache-Control": "no-store"})

    async def whole_page(_: web.Request) -> web.Response:
        return web.Response(text=page.page(pages.status()), content_type="text/html", headers=_PAGE_HEADERS)

    async def content(_: web.Request) -> web.Response:
        return web.Response(text=page.content(pages.status()), content_type="text/html", headers=_PAGE_HEADERS)

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/status", status)
    app.router.add_get("/", whole_page)
    app.router.add_get("/content", content)
    for name, content_type in page.STATIC.items():
        app.router.add_get(f"/static/{name}", _file(page.static(name), content_type))
    return app


def _file(body: bytes, content_type: str) -> Handler:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, headers={"Cache-Control": "max-age=300"})

    return send


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False)
