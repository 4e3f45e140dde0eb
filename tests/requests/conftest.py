"""Shared by the tests of the plug-in's socket: a sink that records messages, and senders of raw packets."""

import gc
import json
import os
import resource
import socket
from collections import Counter
from contextlib import contextmanager

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
        self.calls.append((message if isinstance(message, Unreadable | None) else type(message), connection))


@contextmanager
def descriptors(free):
    """Limits this process to opening ``free`` more files."""
    gc.collect()  # otherwise what earlier tests left open could be closed within the block, and make room
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one) for one in os.listdir("/proc/self/fd"))  # noqa: PTH208 - quick enough
    held = [os.dup(0) for _ in range(highest)]  # so that no lower one is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + free, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for one in held:
            os.close(one)


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
    made = []

    def open_one():
        made.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
        made[-1].connect(str(socket_path))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


class CheckingReceiver(PlainReceiver):
    """Also reads each packet with the sidecar's own code."""

    def _take(self, packet, engine):
        read_packet(json.dumps(packet).encode())
        return super()._take(packet, engine)


@pytest.fixture
def plain(socket_path):
    """A receiver other than the sidecar's."""
    one = CheckingReceiver(socket_path)
    yield one
    one.die()


@pytest.fixture
def installed(socket_path):
    """Makes scheduler classes that the plug-in has wrapped."""

    def install(base=Scheduler):
        cls = fresh(base)
        plugin.install(cls, "0.32.0", str(socket_path))
        return cls

    return install


@pytest.fixture
def made(installed):
    """Makes observed schedulers, and closes their connections at the end."""
    every = []

    def make(base=Scheduler, **config):
        every.append(installed(base)(**config))
        return every[-1]

    yield make
    for one in every:
        if one._specdec_link.socket is not None:
            one._specdec_link.socket.close()
