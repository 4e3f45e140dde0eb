"""How soon the split is there: the real plug-in in a busy engine, beside the sidecar's state."""

import socket
from contextlib import suppress

import pytest

from sidecar.requests.messages import read_packet
from sidecar.requests.tally import tally_of
from tests.analysis.analysis_tools import Server, snap
from tests.requests.scheduler_double import request

RUNNING = [f"r{number}" for number in range(1024)]
STEPS = 10  # a second


class Sidecar:
    """Reads the plug-in's packets and polls vLLM's page, in the caller's thread."""

    def __init__(self, path, scheduler, at):
        self.scheduler = scheduler
        self.server = Server(at, server="a1b2", thresholds={"min_requests": 1})
        self.told = None  # drafts, by the last whole report
        self._cells = {}
        self._connections = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)

    def read(self):
        with suppress(BlockingIOError):
            if not self._connections:
                self._connections.append(self._listener.accept()[0])
                self._connections[0].setblocking(False)
            while True:
                self._take(read_packet(self._connections[0].recv(131_072)))

    def _take(self, packet):
        if packet.hello is not None:
            self.server.state.plugin.receive(1, packet.hello)
        if packet.report is not None:
            self.server.state.plugin.receive(1, packet.report)
            self._cells |= dict(packet.report.cells)
            if packet.report.end is not None:
                self.told = sum(tally_of(numbers).drafts for numbers in self._cells.values())

    def poll(self):
        """The drafts of the split; None while there is none."""
        self.server.poll(snap("2", self.scheduler.counted[0]))
        if self.server.model().no_split is not None:
            return None
        return sum(row.tally.drafts for row in self.server.model().temperatures)

    def close(self):
        for one in (*self._connections, self._listener):
            one.close()


@pytest.fixture
def serve(made, clock, socket_path):
    """1,024 requests run at 200 temperatures, seen by a new sidecar for some seconds.

    Gives, for each poll, what it shows and what the last whole report had told.
    """
    scheduler = made(*(request(name, number % 200 / 100) for number, name in enumerate(RUNNING)))
    scheduler.step(dict.fromkeys(RUNNING, (0, 1)))

    def seen(seconds):
        socket_path.unlink(missing_ok=True)
        sidecar = Sidecar(socket_path, scheduler, at=clock.time())
        polls = []
        for _ in range(seconds):
            for _ in range(STEPS):
                clock.at += 1 / STEPS
                scheduler.step(dict.fromkeys(RUNNING, (3, 3)))
                sidecar.read()
            polls.append((sidecar.poll(), sidecar.told))
        sidecar.close()
        return polls

    return seen


def test_with_1024_running_the_split_is_there_at_the_first_poll_after_the_first_report(serve):
    """A report of 200 cells takes four steps. The next sidecar gets all of them again."""
    for polls in (serve(3), serve(3)):
        told = [poll for poll in polls if poll[1] is not None]
        assert len(told) >= 2, "a first report is whole within two seconds"
        assert all(shown == drafts for shown, drafts in told)
        assert told[-1][0] > 0
    assert told[-1][0] >= 4 * STEPS * len(RUNNING)
