"""Shared by the tests of the plug-in's socket: a sink that remembers, and senders of raw packets."""

import os
import resource
import shutil
import socket
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from sidecar.requests.receiver import PluginReceiver


class Sink:
    """Keeps what it is given, in ``calls`` in the order of the calls."""

    def __init__(self):
        self.calls = []
        self.hellos, self.ticks, self.requests = [], [], []
        self.drops = Counter()

    def hello(self, connection, hello):
        self.calls.append(("hello", connection))
        self.hellos.append(hello)

    def tick(self, connection, tick):
        self.calls.append(("tick", connection))
        self.ticks.append(tick)

    def finished(self, connection, request):
        self.calls.append(("finished", connection))
        self.requests.append(request)

    def closed(self, connection):
        self.calls.append(("closed", connection))

    def dropped(self, reason, count):
        self.drops[reason] += count

    def unreadable(self, connection, plugin, version):
        self.calls.append(("unreadable", connection, plugin, version))


@contextmanager
def descriptors(free):
    """This process can open so many files, and no more."""
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
def folder():
    """A folder whose paths are short enough for a Unix socket, whatever the test's name."""
    made = tempfile.mkdtemp(prefix="specdec")
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def socket_path(folder):
    return folder / "plugin.sock"


@pytest.fixture
def receiving(socket_path, sink):
    """Makes a receiver at ``socket_path`` that delivers to ``sink``."""

    def make(path=socket_path, **options):
        return PluginReceiver(path, sink, structlog.get_logger("test"), **options)

    return make


@pytest.fixture
async def receiver(receiving):
    """The same, listening."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def connect(socket_path):
    """A sender of raw packets."""
    made = []

    def open_one():
        made.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
        made[-1].connect(str(socket_path))
        return made[-1]

    yield open_one
    for one in made:
        one.close()
