"""The whole data path: vLLM's pages and requests → state → the sidecar's own page."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from sidecar import wiring
from sidecar.analysis.target_log import LoggedTarget
from sidecar.analysis.target_state import TargetReport
from sidecar.engine.scrape import ScrapeSink
from sidecar.errors import listening
from sidecar.export.collector import OwnCounts, export_families
from sidecar.export.exporter import Exporter
from sidecar.export.families import Family
from sidecar.export.status import status
from sidecar.export.web import Pages, make_web
from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer
from sidecar.log import Log, StateLog, set_log_level
from sidecar.settings import Settings
from sidecar.settings.addresses import Address
from sidecar.settings.reload import Reloader
from sidecar.stall_watch import StallWatch
from sidecar.supervise import Supervisor

if TYPE_CHECKING:  # most sidecars import neither
    from sidecar.alerting.push import Push
    from sidecar.recording.recorder import Recorder


@asynccontextmanager
async def running(
    settings: Settings, recorder: "Recorder | None" = None, reloader: Reloader | None = None
) -> AsyncIterator[Address]:
    """Runs the sidecar until the block is left; yields the address of its own page.

    Raises:
        ListenError: an address or a socket cannot be bound.
    """
    log = structlog.get_logger("sidecar")
    async with AsyncExitStack() as stack:
        page_access, source_access = wiring.page_access(settings, log), wiring.source_access(settings, log)
        source = wiring.request_source(settings, source_access)
        requests = wiring.request_state(settings, source)
        targets = [wiring.target_state(vllm.name, settings, requests) for vllm in settings.vllms]
        scraped = {
            vllm.name: await stack.enter_async_context(wiring.page_source(vllm.vllm_url, settings))
            for vllm in settings.vllms
        }
        supervisor = await stack.enter_async_context(Supervisor(StateLog(log)))  # ends polling before that
        for target in targets:
            scrapes: ScrapeSink = LoggedTarget(target, log, StateLog(log))
            if recorder is not None:
                scrapes = recorder.tee_scrapes(scrapes, scraped[target.name])
            supervisor.start(target.name, wiring.poller(scraped[target.name], settings, scrapes).run)

        stalls = StallWatch(time.monotonic)
        supervisor.start("stall_watch", stalls.run)

        sink = requests if recorder is None else recorder.tee_requests(requests)

        def reports(*, history: bool = False) -> list[TargetReport]:
            return [target.report(time.time(), history=history) for target in targets]

        push = _push(settings, reports, page_access, log)
        if push is not None:
            supervisor.start("alerts", push.run)

        export = wiring.export(settings)

        def apply(new: Settings) -> None:
            nonlocal export
            export = wiring.export(new)
            set_log_level(new.log.level)
            for target in targets:
                target.judge.thresholds = wiring.verdicts(new)
            if push is not None:
                push.limits = wiring.push_thresholds(new)

        if reloader is not None:
            supervisor.start("settings", lambda: reloader.run(apply))

        passthrough_series = settings.limits.passthrough_series if settings.reexport else 0

        def read() -> tuple[list[Family], dict[str, bytes]]:
            found = reports()
            counts = OwnCounts(
                failures=supervisor.failures,
                reloads=_reloads(reloader, page_access, source_access),
                http_refusals=server.refusals,
                proxy=proxy_stats(),
                alerts_sent=push.sent if push else {},
                loop_stall=stalls.longest,
            )
            up = {report.name for report in found if report.up}
            whole = {name: pages.whole_page for name, pages in scraped.items() if name in up}
            return export_families(found, counts, export), whole if passthrough_series else {}

        every = min(settings.scrape_interval, 1.0)  # no rendering more often than vLLM is polled
        pages = Pages(
            Exporter(read, passthrough_series, every),
            status=lambda: status(reports(history=True), export),
            ready=lambda: all(target.is_polled for target in targets),
            every=every,
        )
        server = GuardedServer(make_web(pages), wiring.own_page(settings), page_access)
        stack.push_async_callback(server.stop)  # when the source has drained: probes are answered until then
        proxy_stats = await stack.enter_async_context(source.open(sink, log, offsets=recorder is not None))
        with listening("SPECDEC_LISTEN", settings.listen):
            address = await server.start(settings.listen.host, settings.listen.port)
        yield Address(*address)


def _reloads(*reloading: Reloader | Access | None) -> dict[str, int]:
    """Counts by outcome, summed."""
    counted = [one.outcomes for one in reloading if one is not None]
    return {outcome: sum(outcomes[outcome] for outcomes in counted) for outcome in (counted[0] if counted else ())}


def _push(
    settings: Settings, reports: Callable[[], list[TargetReport]], access: Access | None, log: Log
) -> "Push | None":
    """None if no Alertmanager is configured."""
    if not settings.alerting.alertmanagers:
        return None
    from sidecar.alerting.push import Push  # noqa: PLC0415 - off by default; saves its memory

    return Push(reports, wiring.push(settings, access), StateLog(log))
