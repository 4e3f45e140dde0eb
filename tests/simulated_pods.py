"""Pods in simulated time, with the product's own code from a request to the report.

Each has the simulated engine, the real plug-in that observes it, and the sidecar's own code from
packets and vLLM's page on. So an hour takes seconds, and nothing that is shown of it contradicts
itself.
"""

import socket
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from math import inf
from random import Random
from unittest import mock

from sidecar.analysis.history import MINUTE, History
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import Unreachable
from sidecar.export.declaration import ReportView
from sidecar.requests import plugin
from sidecar.requests.messages import MAX_PACKET_BYTES, read_packet
from sidecar.settings.groups import Limits
from specdec_tools.demo.metrics_page import MetricsPage
from specdec_tools.demo.scheduler import Request, SamplingParams, Scheduler, SimulatorOptions
from specdec_tools.demo.server import VERSION


class SimulatedClock:
    """Stands in for the module ``time`` in the plug-in; it stands until it is moved."""

    def __init__(self, at):
        self.at = at

    def monotonic(self):
        return self.at

    def time(self):
        return self.at

    def perf_counter(self):
        """A report takes no time."""
        return 0.0


@contextmanager
def simulated_time(at):
    """Gives the plug-in a clock that begins at ``at``, in Unix seconds."""
    clock = SimulatedClock(at)
    with mock.patch.object(plugin, "time", clock):
        yield clock


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests of an engine, so many ``at_once`` or, if given, one ``every`` so many seconds.

    ``mix`` has weights by temperature. ``prompt`` and ``output`` are ranges of tokens. ``own`` is
    the share that this product's own commands have sent.
    """

    mix: Mapping[float, float]
    at_once: int = 4
    every: float | None = None
    prompt: range = range(100, 300)
    output: range = range(60, 140)
    own: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """An engine to be started, and what it serves."""

    options: SimulatorOptions
    traffic: Traffic
    seed: int = 1


class SimulatedEngine:
    """One engine of a vLLM, with its own page, as far as its clock has come: ``at``.

    Without a ``socket_path`` it has no plug-in. ``server`` is the id of its vLLM.
    """

    def __init__(self, clock, load, socket_path=None, server=None):
        self.traffic = load.traffic
        self.at = clock.at
        self.hangs = False
        self._clock = clock
        self._random = Random(load.seed)
        self._names = count()
        self._next = clock.at if load.traffic.every else inf  # when the next request comes
        self._pages = PageReader(wanted(), Limits())
        self._snapshots = SnapshotReader()

        kind = Scheduler
        if socket_path is not None:
            kind = type("Scheduler", (Scheduler,), {})
            plugin.install(kind, VERSION, str(socket_path), server)
        self._scheduler = kind(load.options)
        self._page = MetricsPage(load.options, started=clock.at, server=server)
        self._fill()

    def become(self, **changes):
        """Goes on with other options, as with other weights."""
        self._scheduler._options = replace(self._scheduler._options, **changes)

    def serve_until(self, end):
        clock, scheduler = self._clock, self._scheduler
        clock.at = self.at  # several engines share the clock
        while clock.at < end and not self.hangs:
            self._fill()
            if not scheduler.get_num_unfinished_requests():
                clock.at = min(self._next, end)
                continue
            scheduler.now = clock.at
            output = scheduler.schedule()
            clock.at += scheduler.duration(output)
            scheduler.now = clock.at
            reports = scheduler.update_from_output(output, scheduler.execute(output))
            for report in reports.values():
                self._page.record_step(report, scheduler)
        self.at = max(clock.at, end)

    def snapshot(self):
        self._page.record_load(self._scheduler)
        body, _ = self._page.render()
        return self._snapshots.read(self._pages.read(body))

    def stop(self):
        """Its process ends."""
        observer = getattr(self._scheduler, "_specdec_link", None)
        if observer is not None:
            observer.report.link.close()

    def _fill(self):
        traffic, scheduler = self.traffic, self._scheduler
        while traffic.every and self._next <= self._clock.at:
            self._send()
            self._next += traffic.every
        while not traffic.every and scheduler.get_num_unfinished_requests() < traffic.at_once:
            self._send()

    def _send(self):
        random, traffic = self._random, self.traffic
        [temperature] = random.choices(list(traffic.mix), weights=list(traffic.mix.values()))
        is_own = bool(traffic.own) and random.random() < traffic.own
        self._scheduler.now = self._clock.at
        self._scheduler.add_request(
            Request(
                request_id=f"{plugin.OWN_MARK if is_own else ''}{next(self._names)}",
                sampling_params=SamplingParams(temperature),
                num_prompt_tokens=random.randrange(traffic.prompt.start, traffic.prompt.stop),
                max_tokens=random.randrange(traffic.output.start, traffic.output.stop),
                arrival_time=self._clock.at,
                random=Random(random.getrandbits(64)),
            )
        )


class SimulatedPod:
    """A vLLM and, once it ``listens``, a sidecar beside it; ``at`` is now, in Unix seconds.

    The plug-in must have ``clock`` in place of ``time``: ``simulated_time``.
    """

    def __init__(self, clock, socket_path, settings):
        self.at = clock.at
        self.engines = ()  # none: no vLLM answers
        self._clock = clock
        self._socket_path = socket_path
        self._settings = settings
        self._servers = count(1)
        self._packets = None
        self._state = None
        self._history = History()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        if self._packets is not None:
            self._packets.close()

    def listen(self):
        """The sidecar starts."""
        self._state = State(self._settings, self.at)
        self._packets = _Packets(self._socket_path)

    def start(self, *loads, has_plugin=True):
        """A vLLM starts, in place of the one before."""
        self.stop()
        self._clock.at = self.at
        path = self._socket_path if has_plugin else None
        server = f"server-{next(self._servers)}" if has_plugin else None
        self.engines = tuple(SimulatedEngine(self._clock, load, path, server) for load in loads)

    def stop(self):
        """The vLLM ends."""
        for engine in self.engines:
            engine.stop()
        self.engines = ()

    def run(self, seconds):
        """Goes on for so long, in whole intervals of polls."""
        interval = self._settings.scrape_interval
        for _ in range(round(seconds / interval)):
            self.at += interval
            for engine in self.engines:
                engine.serve_until(self.at)
            if self._state is not None:
                self.poll()

    def poll(self):
        """The sidecar takes in what plug-ins have sent, and vLLM's page."""
        state = self._state
        for connection, message in self._packets.received():
            state.plugin.receive(connection, message)
        if self.engines:
            page = _merged([engine.snapshot() for engine in self.engines])
            state.scraped(self.at, 0.005, self._settings.scrape_interval, page)
        else:
            state.failed(self.at, Unreachable("connection refused"))
        if state.health.suspects_stall:
            state.health.answered(self.at, is_paused=False)
        if self.at % MINUTE == 0:
            self._history.take(state.report(self.at))

    def shown(self):
        """What the sidecar's pages show."""
        return ReportView(self._state.report(self.at), self._settings, self._history)


def _merged(pages):
    """The page of all engines."""
    engines = chain.from_iterable(page.engines for page in pages)
    return replace(pages[0], engines=tuple(sorted(engines, key=lambda engine: engine.key)))


class _Packets:
    """What plug-ins send to the sidecar's socket."""

    def __init__(self, path):
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen()
        self._numbers = count(1)
        self._connections = {}

    def received(self):
        """The connections' numbers and messages since the last call."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._connections[next(self._numbers)] = connection
        for number in [*self._connections]:
            yield from ((number, message) for message in self._of(number))

    def _of(self, number):
        connection = self._connections[number]
        with suppress(BlockingIOError):
            while text := connection.recv(MAX_PACKET_BYTES):
                packet = read_packet(text)
                yield from (one for one in (packet.hello, packet.report) if one is not None)
            connection.close()
            del self._connections[number]
            yield None

    def close(self):
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        self._path.unlink()
