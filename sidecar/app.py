"""The whole data path: vLLM's page and the plug-in → state → one report → own pages and alerts."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, Protocol

import structlog

from sidecar.alerting.push import Push
from sidecar.analysis.engine.health import longest_still
from sidecar.analysis.history import MINUTE, History
from sidecar.analysis.report import OwnReport, Report
from sidecar.analysis.state import State
from sidecar.engine.page_source import PageSource, page_source
from sidecar.engine.pause import PauseAsker
from sidecar.engine.probe import Prober
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.errors import ListenError
from sidecar.export.changes import LoggedState
from sidecar.export.declaration import ReportView
from sidecar.export.web import PROBES, make_web
from sidecar.http.server import GuardedServer, GuardOptions
from sidecar.log import Logger, StateLog, set_log_level
from sidecar.requests.messages import PluginSink
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import Settings
from sidecar.settings.field_types import Address
from sidecar.settings.reload import Reloader
from sidecar.supervise import Supervisor

# Made at import, before ``configure_logging``: it reads its configuration whenever it logs.
_LOG: Final[Logger] = structlog.get_logger("sidecar")


class Tee(Protocol):
    """Sees everything that the analysis receives; ``record`` writes it to files."""

    def tee_scrapes(self, sink: ScrapeSink, source: PageSource) -> ScrapeSink:
        """A sink that passes the results of polling ``source`` on to ``sink``."""

    def tee_requests(self, sink: PluginSink) -> PluginSink:
        """A sink that passes the plug-ins' messages on to ``sink``."""


@asynccontextmanager
async def running(
    settings: Settings, tee: Tee | None = None, reloader: Reloader | None = None
) -> AsyncIterator[Address]:
    """Runs the sidecar until the context exits; yields the address of its own pages.

    Raises:
        ListenError: the address cannot be bound.
    """
    async with (
        page_source(settings, settings.limits, whole=settings.reexport) as pages,
        Supervisor(StateLog(_LOG)) as supervisor,  # stops polling before ``pages`` close
    ):
        sidecar = Sidecar(settings, pages, supervisor, tee, reloader)

        async with sidecar.receiver:
            supervisor.start("vllm", sidecar.poller.run)
            supervisor.start("pause", sidecar.pause.run)
            supervisor.start("history", sidecar.keep_history)
            if sidecar.prober is not None:
                supervisor.start("probe", sidecar.prober.run)
            if sidecar.push is not None:
                supervisor.start("alerts", sidecar.push.run)
            if reloader is not None:
                supervisor.start("settings", partial(reloader.run, sidecar.apply))

            try:
                yield await _listening(sidecar.server, settings.listen)
            finally:
                await sidecar.server.stop()


class Sidecar:
    """The parts of one sidecar, each built from those before it."""

    def __init__(
        self,
        settings: Settings,
        pages: PageSource,
        supervisor: Supervisor,
        tee: Tee | None,
        reloader: Reloader | None,
    ) -> None:
        self._settings = settings  # those in force; a reload replaces them
        self._supervisor = supervisor
        self._reloader = reloader
        self._state = State(settings, time.time())
        self._history = History()
        scrapes: ScrapeSink = LoggedState(self._state, _LOG, StateLog(_LOG), settings.measured)
        requests: PluginSink = self._state.plugin.receive
        if tee is not None:
            scrapes = tee.tee_scrapes(scrapes, pages)
            requests = tee.tee_requests(requests)

        self.poller = Poller(pages, settings, scrapes)
        self.pause = PauseAsker(settings, self._state.health)
        self.prober = _prober(settings, self._state, self.pause)
        self.receiver = PluginReceiver(settings.plugin.socket, requests, _LOG)
        self.push = _push(self._report, settings)

        own_pages = make_web(
            self._shown,
            lambda: self._state.is_polled,
            vllm_page=lambda: pages.whole_page if settings.reexport else b"",
            # One report a second, or per poll if polls are faster.
            every=min(settings.scrape_interval, 1.0),
        )
        self.server = GuardedServer(
            own_pages, GuardOptions(open_paths=PROBES), settings.web_config_file
        )

    def apply(self, settings: Settings) -> None:
        """Puts reloaded settings in force.

        Those that need a restart still have their old values: see ``Reloader``.
        """
        self._settings = settings
        set_log_level(settings.log.level)
        self.server.web_config = settings.web_config_file
        self._state.apply(settings)

    def _shown(self) -> ReportView:
        return ReportView(self._report(), self._settings, self._history)

    async def keep_history(self) -> None:
        """Adds a report to the history of the last hour, once a minute."""
        while True:
            self._history.take(self._report())
            await asyncio.sleep(MINUTE - time.time() % MINUTE)

    def _report(self) -> Report:
        own = OwnReport(
            failures=dict(self._supervisor.failures),
            reloads={} if self._reloader is None else dict(self._reloader.outcomes),
            invalid_settings=() if self._reloader is None else self._reloader.invalid,
            http_refusals=dict(self.server.connections.refusals),
            alerts_sent={} if self.push is None else self.push.sent,
        )
        return self._state.report(time.time(), own, self.receiver.problem)


async def _listening(server: GuardedServer, listen: Address) -> Address:
    host = listen.host
    if listen.is_wildcard:  # as Prometheus' own exporters do
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - what was asked for

    try:
        return Address(*await server.start(host, listen.port))
    except OSError as error:
        # ``socket.create_server`` appends " (while attempting to bind on address ...)".
        problem, _, _ = (error.strerror or str(error)).partition(" (while")
        advice = "set another address, such as SPECDEC_LISTEN=127.0.0.1:9912"
        raise ListenError(f"cannot bind {listen}: {problem}; {advice}") from error


def _prober(settings: Settings, state: State, pause: PauseAsker) -> Prober | None:
    """None unless probes are switched on."""
    if settings.probe.interval is None:
        return None

    return Prober(
        settings,
        settings.probe,
        state.probes,
        pause.ask,
        StateLog(_LOG),
        timeout=2 * longest_still(settings.engine_health),
    )


def _push(report: Callable[[], Report], settings: Settings) -> Push | None:
    """The direct push; None if no Alertmanager is configured."""
    if not settings.alerting.alertmanagers:
        return None
    own_url = f"{settings.scheme}://{_reachable(settings.listen)}"
    return Push(report, settings.alerting, own_url, StateLog(_LOG))


def _reachable(listen: Address) -> Address:
    """The address at which others reach ``listen``: the host's own if ``listen`` is a wildcard."""
    if not listen.is_wildcard:
        return listen

    name = socket.gethostname()
    with suppress(OSError):  # in a Pod, the host name resolves to the Pod's address, IPv4 or IPv6
        first, *_ = socket.getaddrinfo(name, listen.port, type=socket.SOCK_STREAM)
        _, _, _, _, (address, *_) = first
        return Address(str(address), listen.port)
    return Address(name, listen.port)
