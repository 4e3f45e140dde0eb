"""The sidecar's own pages: metrics, probes, status, the page for people and the runbooks."""

import json
import re
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.analysis.engine.health import HealthReport
from sidecar.export import status_page
from sidecar.export.declaration import ReportView
from sidecar.export.exporter import chosen, compressed, rendered
from sidecar.export.lines import hour
from sidecar.export.reexport import Reexport
from sidecar.export.sections import FIDELITY
from sidecar.export.status import status
from sidecar.log import redacted
from sidecar.shipped import shipped
from sidecar.wording.health import health_line

_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": status_page.SECURITY_POLICY,
}
PROBES = frozenset({"/-/healthy", "/-/ready", "/-/engine"})
"""The paths of the probes, whose responses reveal nothing but whether something works."""

_MOST_MADE = 16  # kept at once: a client may request any version of OpenMetrics, and gets it
# A relative link in Markdown: its text, and its target without the anchor.
_LINK = re.compile(r"\[([^]]+)\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
_Made = TypeVar("_Made")


def make_web(
    read: Callable[[], ReportView],
    is_ready: Callable[[], bool],
    *,
    vllm_page: Callable[[], bytes] = bytes,
    every: float = 0.0,
) -> web.Application:
    """The application; it accepts no request bodies.

    ``read`` is called, and each page made, once in ``every`` seconds. ``is_ready`` is whether vLLM
    has been polled once, successfully or not: a Pod whose sidecar is not ready gets no traffic, so
    this does not depend on vLLM. ``vllm_page`` is vLLM's last whole page if it is re-exported, else
    empty.
    """
    app = web.Application(client_max_size=0)
    kept = PageCache(every, read)

    def made(make: Callable[[ReportView], str], content_type: str) -> Handler:
        async def send(_: web.Request) -> web.Response:
            text = kept(make, make)
            return web.Response(text=text, content_type=content_type, headers=_PAGE_HEADERS)

        return send

    _add_probes(app, is_ready, lambda: kept("health", lambda shown: shown.report.health))
    app.router.add_get("/metrics", _metrics(kept, vllm_page))
    app.router.add_get("/api/v1/status", made(_json, "application/json"))
    app.router.add_get("/api/v1/history", made(_hour, "application/json"))
    app.router.add_get("/", made(status_page.page, "text/html"))
    app.router.add_get("/content", made(status_page.content, "text/html"))
    for name, content_type in status_page.STATIC.items():
        app.router.add_get(f"/static/{name}", _file(status_page.static(name), content_type))

    runbooks = {path.name: path.read_bytes() for path in shipped("runbooks").glob("*.md")}
    for path, folder in (("/runbooks", "runbooks/"), ("/runbooks/", "")):
        app.router.add_get(path, _file(_links(folder, sorted(runbooks)).encode(), "text/html"))

    for name, text in runbooks.items():
        app.router.add_get(f"/runbooks/{name}", _file(text, "text/plain"))

    fidelity = _without_links(shipped("fidelity.md", "docs").read_text(encoding="utf-8"))
    app.router.add_get(f"/{FIDELITY}", _file(fidelity.encode(), "text/plain"))

    return app


def _add_probes(
    app: web.Application, is_ready: Callable[[], bool], read_health: Callable[[], HealthReport]
) -> None:
    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def ready(_: web.Request) -> web.Response:
        status_code, text = (200, "ready\n") if is_ready() else (503, "not ready\n")
        return web.Response(status=status_code, text=text)

    async def engine(_: web.Request) -> web.Response:
        health = read_health()
        status_code = 503 if health.asks_for_restart else 200
        return web.Response(status=status_code, text=health_line(health))

    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/-/engine", engine)


def _metrics(kept: "PageCache", vllm_page: Callable[[], bytes]) -> Handler:
    reexport = Reexport()

    async def metrics(request: web.Request) -> web.Response:
        page_of_vllm = vllm_page()
        encodings = request.headers.get("Accept-Encoding", "")
        if not page_of_vllm:
            form = chosen(request.headers.get("Accept", ""), encodings)
            body = kept(form, lambda shown: compressed(shown, form))
            return web.Response(body=body, headers=form.headers)

        # In its other formats, prometheus_client 0.26 turns the colons in vLLM's names into
        # underscores.
        form = chosen("", encodings)
        limit = kept("limit", lambda shown: shown.settings.limits.passthrough_series)
        own = await reexport.series(page_of_vllm, limit)

        def make(shown: ReportView) -> bytes:
            # From this report, so that the page shows one moment.
            return rendered(shown, form) + (own if shown.report.scrape.up else b"")

        body = kept(("reexport", form), make)
        if form.gzip:
            body = await reexport.compressed(body)

        return web.Response(body=body, headers=form.headers)

    return metrics


def _json(shown: ReportView) -> str:
    """The status with vLLM's address.

    A recording's status lacks it: these settings are not those it was recorded with.
    """
    whole = {"vllm_url": redacted(shown.settings.vllm_url), **status(shown)}
    return json.dumps(whole, allow_nan=False)


def _hour(shown: ReportView) -> str:
    return json.dumps(hour(shown), allow_nan=False)


def _links(folder: str, names: Sequence[str]) -> str:
    """A page that links to all runbooks; ``folder`` is their path relative to the page."""
    links = "".join(f'<p><a href="{folder}{name}">{name}</a>' for name in names)
    return f"<!doctype html><title>Runbooks</title>{links}"


def _without_links(text: str) -> str:
    """A page of docs/ that names the pages it links to, which this server does not have."""
    return _LINK.sub(r"\1 (see docs/\2 in the source)", text)


def _file(body: bytes, content_type: str) -> Handler:
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Cache-Control": "max-age=300"}

    async def send(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=headers)

    return send


class PageCache:
    """Caches what is made from the result of ``read``.

    Each is made once in ``seconds``, unless very many are requested.
    """

    def __init__(
        self,
        seconds: float,
        read: Callable[[], ReportView],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._read = read
        self._clock = clock
        self._at = 0.0
        self._shown: ReportView | None = None
        self._made: dict[Hashable, Any] = {}

    def __call__(self, name: Hashable, make: Callable[[ReportView], _Made]) -> _Made:
        """The result of ``make``, cached under ``name``."""
        now = self._clock()
        if self._shown is None or now - self._at >= self._seconds:
            self._made = {}
            self._shown = self._read()
            self._at = now

        if name not in self._made:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            self._made[name] = make(self._shown)

        made: _Made = self._made[name]
        return made
