"""The whole data path: vLLM's pages → state → our page."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from sidecar import wiring
from sidecar.analysis.attribution.attributors import DROP_REASONS
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.target_log import LoggedTarget
from sidecar.analysis.target_state import TargetReport, TargetState
from sidecar.engine.fetch import Fetcher
from sidecar.engine.pacing import Pacing
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.errors import listening
from sidecar.export.collector import OwnCounts, export_families
from sidecar.export.exporter import Exporter, Reading
from sidecar.export.status import status
from sidecar.export.web import Pages, make_web
from sidecar.http.guard import GuardedServer
from sidecar.http.server import serving
from sidecar.log import StateLog
from sidecar.requests.source import drop_reasons, request_source
from sidecar.settings import Settings
from sidecar.settings.addresses import Address
from sidecar.settings.groups import Target
from sidecar.supervise import Supervisor

if TYPE_CHECKING:  # not every sidecar needs them
    from sidecar.alerting.push import Push
    from sidecar.recording.recorder import Recorder


@asynccontextmanager
async def running(settings: Settings, recorder: "Recorder | None" = None) -> AsyncIterator[Address]:
    """The sidecar, from here to the end of the block; gives the address of its own page.

    Raises:
        ListenError: an address or a socket to listen on can't be had.
    """
    log = structlog.get_logger("sidecar")
    async with AsyncExitStack() as stack:
        requests = request_state(settings)
        states: list[TargetState] = []
        sources: dict[str, PageSource] = {}
        pollers: dict[str, Poller] = {}
        for target in settings.vllms:
            fetcher = Fetcher(target.vllm_url, wiring.fetch(settings))
            stack.push_async_callback(fetcher.close)
            source = PageSource(fetcher, wiring.page_limits(settings), filtered=wiring.filtered(settings))
            sources[target.name] = source
            states.append(target_state(target, settings, requests))
            sink: ScrapeSink = LoggedTarget(states[-1], log, StateLog(log))
            if recorder is not None:
                sink = recorder.tee_scrapes(sink, source)
            pacing = Pacing(wiring.pacing(settings), random.random)
            pollers[target.name] = Poller(source, pacing, sink, time.time, time.monotonic)
        # Entered after the connections, so polling ends before they are closed.
        supervisor = await stack.enter_async_context(Supervisor(log))
        for name, poller in pollers.items():
            supervisor.start(name, poller.run)

        def reports(*, history: bool = False) -> list[TargetReport]:
            return [state.report(time.time(), history=history) for state in states]

        told = requests if recorder is None else recorder.tee_requests(requests)
        proxy_stats = await stack.enter_async_context(request_source(settings, told, log, offsets=recorder is not None))
        push = alert_push(settings, reports, StateLog(log))
        if push is not None:
            supervisor.start("alerts", push.run)
        export = wiring.export(settings)
        passthrough_series = wiring.reexported(settings)

        def read() -> Reading:
            found = reports()
            counts = OwnCounts(
                failures=supervisor.failures,
                http=server.stats,
                proxy=proxy_stats(),
                alerts_sent=push.sent if push else {},
            )
            pages = {report.name: sources[report.name].whole_page for report in found if report.up}
            return Reading(export_families(found, counts, export), pages if passthrough_series else {})

        pages = Pages(
            Exporter(read, passthrough_series),
            status=lambda: status(reports(history=True), export),
            ready=lambda: all(state.polled for state in states),
        )
        server = GuardedServer(make_web(pages))
        with listening("SPECDEC_LISTEN", settings.listen):
            address = await stack.enter_async_context(serving(server, settings.listen))
        yield address


def alert_push(settings: Settings, reports: Callable[[], list[TargetReport]], log: StateLog) -> "Push | None":
    """What sends alerts straight to Alertmanager; None where nobody is to be told."""
    if not settings.alerting.alertmanagers:
        return None
    from sidecar.alerting.push import Push  # noqa: PLC0415 - off by default, and then not paid for in memory

    return Push(reports, wiring.push(settings), log)


def target_state(target: Target, settings: Settings, requests: RequestState) -> TargetState:
    """The empty state of one server; only one server's requests can be told apart."""
    return TargetState(
        target.name,
        wiring.lookback(settings),
        interval=settings.scrape_interval,
        max_engines=settings.limits.engines,
        max_positions=settings.limits.positions,
        thresholds=wiring.verdicts(settings),
        requests=None if settings.requests.source == "none" else requests,
    )


def request_state(settings: Settings) -> RequestState:
    """The empty state of the requests."""
    return RequestState(
        settings.requests.source,
        wiring.buckets(settings),
        wiring.attribution(settings),
        settings.latency_window,
        drop_reasons(settings) | DROP_REASONS,
    )
