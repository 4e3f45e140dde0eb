"""Shared by the tests of the plug-in's socket.

A sink that records messages, and senders of raw packets.
"""

import gc
import json
import os
import resource
import socket
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import structlog

from sidecar.requests import plugin
from sidecar.requests.messages import Dropped, Hello, ReportPart, Unreadable, read_packet
from sidecar.requests.receiver import PluginReceiver
from tests.requests.plain_receiver import PlainReceiver
from tests.requests.scheduler_double import Scheduler, fresh


class Sink:
    """Keeps the messages that it receives; all but drops are also in ``calls``, in order."""

    def __init__(self):
        self.calls = []
        self.hellos, self.reports, self.requests = [], [], []
        self.drops = Counter()

    def __call__(self, connection, message):
        match message:
            case Dropped():
                self.drops[message.reason] += 1
                return
            case Hello():
                self.hellos.append(message)
            case ReportPart():
                self.reports.append(message)
                self.requests += message.finished
        self.calls.append(
            (message if isinstance(message, Unreadable | None) else type(message), connection)
        )


@contextmanager
def descriptors(free):
    """Limits this process to opening ``free`` more files."""
    # otherwise what earlier tests left open could be closed within the block, and make room
    gc.collect()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - quick enough
    held = [os.dup(0) for _ in range(highest)]  # so that no lower one is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + free, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for descriptor in held:
            os.close(descriptor)


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def receiving(socket_path, sink):
    """Makes a receiver at ``socket_path`` that delivers to ``sink``."""

    def make(path=socket_path, **options):
        return PluginReceiver(path, sink, structlog.get_logger("test"), **options)

    return make


@pytest.fixture
async def receiver(receiving):
    """A receiver that is listening."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def connect(socket_path):
    """Opens connections for sending raw packets."""
    connections = []

    def open_connection():
        connections.append(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        )
        connections[-1].connect(str(socket_path))
        return connections[-1]

    yield open_connection
    for connection in connections:
        connection.close()


class CheckingReceiver(PlainReceiver):
    """Also reads each packet with the sidecar's own code."""

    def _take(self, packet, life):
        read_packet(json.dumps(packet).encode())
        return super()._take(packet, life)


@pytest.fixture
def listen(socket_path):
    """Starts a receiver other than the sidecar's, and ends it at the end."""
    receivers = []

    def start():
        receivers.append(CheckingReceiver(socket_path))
        return receivers[-1]

    yield start
    for receiver in receivers:
        receiver.die()


@pytest.fixture
def plain(listen):
    """A receiver other than the sidecar's, which listens from the start."""
    return listen()


@pytest.fixture
def clock(monkeypatch):
    """The plug-in's clocks, which stand until they are moved."""
    now = SimpleNamespace(monotonic=lambda: now.at, time=lambda: 2000 + now.at, at=10.0)
    monkeypatch.setattr(plugin, "time", now)
    return now


@pytest.fixture(autouse=True)
def _nothing_stays_connected(monkeypatch):
    """Closes at the end what plug-ins have opened: schedulers are freed some time later."""
    links, own = [], plugin.Link.__init__

    def opened(link, path):
        own(link, path)
        links.append(link)

    monkeypatch.setattr(plugin.Link, "__init__", opened)
    yield
    for link in links:
        link.close()


@pytest.fixture
def installed(socket_path):
    """Makes scheduler classes that the plug-in has wrapped."""

    def install(version="0.32.0", server="a1b2"):
        cls = fresh(Scheduler)
        plugin.install(cls, version, str(socket_path), server)
        return cls

    return install


@pytest.fixture
def made(installed):
    """Makes observed schedulers, with waiting requests."""

    def make(*requests, **config):
        scheduler = installed()(**config)
        for request in requests:
            scheduler.add_request(request)
        return scheduler

    return make
