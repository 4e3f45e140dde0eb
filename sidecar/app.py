"""The whole data path: vLLM's page and the plug-in → state → one report → the sidecar's own pages and alerts."""

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import structlog

from sidecar.alerting.push import Push
from sidecar.analysis.report import OwnReport, Report
from sidecar.analysis.state import State
from sidecar.engine.page_source import page_source
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.errors import ListenError
from sidecar.export.changes import LoggedState
from sidecar.export.declaration import Shown
from sidecar.export.web import PROBES, Pages, make_web
from sidecar.http.guard import GuardedServer
from sidecar.http.limits import GuardOptions
from sidecar.log import StateLog, set_log_level
from sidecar.recording.recorder import Recorder
from sidecar.requests.messages import PluginSink
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import Settings
from sidecar.settings.addresses import Address
from sidecar.settings.reload import Reloader
from sidecar.supervise import Supervisor


@asynccontextmanager
async def running(
    settings: Settings, recorder: Recorder | None = None, reloader: Reloader | None = None
) -> AsyncIterator[Address]:
    """Runs the sidecar until the context exits; yields the address of its own pages.

    Raises:
        ListenError: the address cannot be bound.
    """
    log = structlog.get_logger("sidecar")
    async with AsyncExitStack() as stack:
        state = State(settings, time.time())
        pages = await stack.enter_async_context(page_source(settings, settings.limits, whole=settings.reexport))
        supervisor = await stack.enter_async_context(Supervisor(StateLog(log)))  # stops polling before ``pages`` close
        scrapes: ScrapeSink = LoggedState(state, log, StateLog(log))
        requests: PluginSink = state.plugin.receive
        if recorder is not None:
            scrapes, requests = recorder.tee_scrapes(scrapes, pages), recorder.tee_requests(requests)
        receiver = await stack.enter_async_context(PluginReceiver(settings.plugin.socket, requests, log))
        supervisor.start("vllm", Poller(pages, settings, scrapes).run)

        def report() -> Report:
            own = OwnReport(
                failures=dict(supervisor.failures),
                reloads={} if reloader is None else dict(reloader.outcomes),
                http_refusals=dict(server.refusals),
                alerts_sent=push.sent if push is not None else {},
            )
            return state.report(time.time(), own, receiver.problem)

        in_force = settings

        def apply(new: Settings) -> None:
            nonlocal in_force
            in_force = new
            set_log_level(new.log.level)
            server.web_config = new.web_config_file
            state.apply(new)
            if push is not None:
                push.settings = new

        every = min(settings.scrape_interval, 1.0)  # at most one report a second, or per poll if polls are faster
        own_pages = Pages(
            read=lambda: Shown(report(), in_force),
            ready=lambda: state.is_polled,
            vllm_page=lambda: pages.whole_page if settings.reexport else b"",
            every=every,
        )
        server = GuardedServer(make_web(own_pages), GuardOptions(open_paths=PROBES), settings.web_config_file)
        push = _push(report, settings, StateLog(log))
        if push is not None:
            supervisor.start("alerts", push.run)
        if reloader is not None:
            supervisor.start("settings", lambda: reloader.run(apply))
        stack.push_async_callback(server.stop)
        try:
            address = await server.start(settings.listen.host, settings.listen.port)
        except OSError as error:
            problem = (error.strerror or str(error)).partition(" (while")[0]  # socket.create_server adds the address
            advice = "set another address, such as SPECDEC_LISTEN=127.0.0.1:9912"
            raise ListenError(f"cannot bind {settings.listen}: {problem}; {advice}") from error
        yield Address(*address)


def _push(report: Callable[[], Report], settings: Settings, log: StateLog) -> Push | None:
    """The direct push; None if no Alertmanager is configured."""
    if not settings.alerting.alertmanagers:
        return None
    web = settings.web_config_file
    scheme = "http" if web is None or web.tls is None else "https"
    return Push(report, settings, f"{scheme}://{_reachable(settings.listen)}", log)


def _reachable(listen: Address) -> Address:
    """The address at which others reach ``listen``: the host's own if that is the wildcard address."""
    if listen.local == listen:
        return listen
    with suppress(OSError):  # in a Pod the host's name resolves to the Pod's address
        return Address(socket.gethostbyname(socket.gethostname()), listen.port)
    return Address(socket.gethostname(), listen.port)
