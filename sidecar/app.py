"""The whole data path: vLLM's pages and requests → state → the sidecar's own page."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from sidecar import wiring
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
from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer
from sidecar.log import Log, StateLog, set_log_level
from sidecar.settings import Settings
from sidecar.settings.addresses import Address
from sidecar.settings.groups import Target
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
        targets = [_target(target, settings, requests, log, recorder) for target in settings.vllms]

        for target in targets:
            stack.push_async_callback(target.fetcher.close)
        supervisor = await stack.enter_async_context(Supervisor(StateLog(log)))  # ends polling before that
        for target in targets:
            supervisor.start(target.name, target.poller.run)

        stalls = StallWatch(time.monotonic)
        supervisor.start("stall_watch", stalls.run)

        sink = requests if recorder is None else recorder.tee_requests(requests)

        def reports(*, history: bool = False) -> list[TargetReport]:
            return [target.state.report(time.time(), history=history) for target in targets]

        push = _push(settings, reports, page_access, log)
        if push is not None:
            supervisor.start("alerts", push.run)

        export = wiring.export(settings)

        def apply(new: Settings) -> None:
            nonlocal export
            export = wiring.export(new)
            set_log_level(new.log.level)
            for target in targets:
                target.state.judge.thresholds = wiring.verdicts(new)
            if push is not None:
                push.limits = wiring.push_thresholds(new)

        if reloader is not None:
            supervisor.start("settings", lambda: reloader.run(apply))

        passthrough_series = wiring.passthrough_series(settings)

        def read() -> Reading:
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
            pages = {target.name: target.source.whole_page for target in targets if target.name in up}
            return Reading(export_families(found, counts, export), pages if passthrough_series else {})

        every = wiring.page_interval(settings)
        pages = Pages(
            Exporter(read, passthrough_series, every),
            status=lambda: status(reports(history=True), export),
            ready=lambda: all(target.state.is_polled for target in targets),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """One vLLM, from the connection to the state."""

    name: str
    fetcher: Fetcher
    source: PageSource
    poller: Poller
    state: TargetState


def _target(
    target: Target, settings: Settings, requests: RequestState, log: Log, recorder: "Recorder | None"
) -> _Target:
    fetcher = Fetcher(target.vllm_url, wiring.fetch(settings))
    source = PageSource(fetcher, wiring.page_limits(settings), filtered=wiring.filtered(settings))
    state = wiring.target_state(target.name, settings, requests)
    sink: ScrapeSink = LoggedTarget(state, log, StateLog(log))
    if recorder is not None:
        sink = recorder.tee_scrapes(sink, source)
    poller = Poller(source, Pacing(wiring.pacing(settings), random.random), sink, time.time, time.monotonic)
    return _Target(name=target.name, fetcher=fetcher, source=source, poller=poller, state=state)


def _push(
    settings: Settings, reports: Callable[[], list[TargetReport]], access: Access | None, log: Log
) -> "Push | None":
    """None if no Alertmanager is configured."""
    if not settings.alerting.alertmanagers:
        return None
    from sidecar.alerting.push import Push  # noqa: PLC0415 - off by default; saves its memory

    return Push(reports, wiring.push(settings, access), StateLog(log))
