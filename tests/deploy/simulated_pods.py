"""Pods in simulated time: what Prometheus would have scraped from them.

Each has the simulated engine, the real plug-in that observes it, and the sidecar's own code from
packets and vLLM's page to its own. So an hour takes seconds, and a name that only a test knows has
no sample.
"""

import socket
from contextlib import contextmanager, suppress
from itertools import count
from random import Random

from sidecar.analysis.report import OwnReport
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.export.declaration import ReportView
from sidecar.export.exporter import chosen, rendered
from sidecar.requests.messages import read_packet
from sidecar.requests.plugin import install
from sidecar.settings import load_settings
from specdec_tools.demo.metrics_page import MetricsPage
from specdec_tools.demo.scheduler import Request, SamplingParams, Scheduler
from specdec_tools.demo.server import VERSION
from tests.page import Samples

POLL = 30  # seconds between two polls of vLLM: twice the default, since polls take most of the time
SCRAPE = 60  # seconds between two scrapes of the sidecar: Prometheus' default
AT_ONCE = 4  # requests that a Pod has at any time
MOST_BYTES = 65536  # of a packet


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


class SimulatedPod:
    """A vLLM with its plug-in, and a sidecar, whose traffic has ``mix``: weights by temperature.

    The plug-in must have ``clock`` in place of ``time``.
    """

    def __init__(self, clock, options, mix, seed):
        self._clock = clock
        self._mix = mix
        self._random = Random(seed)
        self._names = map(str, count())
        self._options = options
        self._settings = load_settings(None, {"SPECDEC_SCRAPE_INTERVAL": f"{POLL}s"})
        self._state = State(self._settings, clock.at)
        self._pages = PageReader(wanted(), self._settings.limits)
        self._snapshots = SnapshotReader()

    def scrapes(self, socket_path, seconds):
        """Serves its traffic for so long; yields the time and the samples of each scrape."""
        begun = self._clock.at
        with _listening(socket_path) as listener:
            scheduler = self._observed(socket_path)
            page = MetricsPage(self._options, started=begun)
            for _ in range(AT_ONCE):
                self._send(scheduler)
            packets = _Packets(listener)

            for polled in range(0, seconds, POLL):
                self._serve_until(begun + polled, scheduler, page)
                self._poll(begun + polled, page, packets)
                if polled % SCRAPE == 0:
                    yield begun + polled, self._scraped(begun + polled)
            packets.close()
            scheduler._specdec_link.report.link.close()

    def _observed(self, socket_path):
        """A scheduler of a class that the plug-in has wrapped."""
        scheduler = type("Scheduler", (Scheduler,), {})
        install(scheduler, VERSION, str(socket_path))
        return scheduler(self._options)

    def _serve_until(self, end, scheduler, page):
        clock = self._clock
        while clock.at < end:
            scheduler.now = clock.at
            output = scheduler.schedule()
            clock.at += scheduler.duration(output)
            scheduler.now = clock.at
            reports = scheduler.update_from_output(output, scheduler.execute(output))
            for report in reports.values():
                page.record_step(report, scheduler)
                for _ in report.finished:
                    self._send(scheduler)

    def _send(self, scheduler):
        random = self._random
        [temperature] = random.choices(list(self._mix), weights=list(self._mix.values()))
        scheduler.add_request(
            Request(
                request_id=next(self._names),
                sampling_params=SamplingParams(temperature),
                num_prompt_tokens=random.randrange(100, 300),
                max_tokens=random.randrange(60, 140),
                arrival_time=self._clock.at,
                random=Random(random.getrandbits(64)),
            )
        )

    def _poll(self, at, page, packets):
        for packet in packets.received():
            for message in (packet.hello, packet.report):
                if message is not None:
                    self._state.plugin.receive(1, message)
        body, _ = page.render()
        self._state.scraped(at, 0.005, POLL, self._snapshots.read(self._pages.read(body)))

    def _scraped(self, at):
        shown = ReportView(self._state.report(at, OwnReport()), self._settings)
        return Samples.parsed(rendered(shown, chosen("text/plain", "")).decode())


class _Packets:
    """What the plug-in sends over its one connection."""

    def __init__(self, listener):
        self._listener = listener
        self._connection = None

    def received(self):
        """The packets since the last call."""
        with suppress(BlockingIOError):
            if self._connection is None:
                self._connection, _ = self._listener.accept()
                self._connection.setblocking(False)
            while True:
                yield read_packet(self._connection.recv(MOST_BYTES))

    def close(self):
        self._connection.close()


@contextmanager
def _listening(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    with listener:
        listener.bind(str(path))
        listener.listen()
        yield listener
    path.unlink()
