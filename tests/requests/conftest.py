"""Shared by the tests of the request sources: recorded exchanges, an ASGI server's part, and a sink that remembers."""

import asyncio
import json
import shutil
import socket
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.requests.middleware.asgi import ObserveRequests
from sidecar.requests.middleware.event_receiver import EventReceiver
from sidecar.requests.observe.endpoint import endpoint_of
from sidecar.requests.observe.exchange_observer import ExchangeObserver

FOLDERS = (Path(__file__).parents[1] / "data" / "exchanges", Path(__file__).parent / "data")
EXCHANGES = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.json"))}


def pytest_generate_tests(metafunc):
    """A test that asks for ``exchange`` runs once for every recorded exchange with a real vLLM 0.32."""
    if "exchange" in metafunc.fixturenames:
        metafunc.parametrize("exchange", [_load(name) for name in EXCHANGES], ids=list(EXCHANGES))


def _load(name):
    return json.loads(EXCHANGES[name].read_text())


class Sink:
    """Keeps what it is given."""

    def __init__(self):
        self.starts = []
        self.records = []
        self.drops = Counter()

    def started(self, request):
        self.starts.append(request)

    def finished(self, record):
        self.records.append(record)

    def dropped(self, reason, count):
        self.drops[reason] += count


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def recorded_exchange():
    """A recorded exchange by its name."""
    return _load


@pytest.fixture
def headers_of():
    """An exchange's reply headers as ASGI has them."""
    return lambda exchange: [(name.encode(), value.encode()) for name, value in exchange["headers"].items()]


@pytest.fixture
def observed(headers_of):
    """The observer of a whole exchange, with the reply cut at ``cuts``."""

    def observe(exchange, cuts=(), **options):
        observer = ExchangeObserver("r1", endpoint_of("POST", exchange["path"]), (), **options)
        observer.request_piece(json.dumps(exchange["request"]).encode())
        observer.request_end()
        observer.reply_head(exchange["status"], headers_of(exchange))
        body = exchange["body"].encode()
        edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
        for begin, end in pairwise(edges):
            observer.reply_piece(body[begin:end])
        observer.reply_end()
        return observer

    return observe


@pytest.fixture
def socket_path():
    """A path short enough for a Unix socket, whatever the test's name."""
    folder = tempfile.mkdtemp(prefix="specdec")
    yield f"{folder}/events.sock"
    shutil.rmtree(folder)


@pytest.fixture
async def receiver(socket_path, sink):
    """A receiver that listens at ``socket_path`` and delivers to ``sink``."""
    receiver = EventReceiver(socket_path, sink)
    await receiver.start()
    yield receiver
    await receiver.stop()


@pytest.fixture
async def middleware(socket_path, monkeypatch):
    """Wraps an application as vLLM does."""
    made = []

    def wrap(app):
        monkeypatch.setenv("SPECDEC_MIDDLEWARE__SOCKET", socket_path)
        made.append(ObserveRequests(app))
        return made[-1]

    yield wrap
    for one in made:
        if one._sender is not None:
            one._sender.close()


@pytest.fixture
def replay(headers_of):
    """An application that reads the request and answers as in a recorded exchange, an event a message, as vLLM does."""

    def application(exchange):
        async def app(scope, receive, send):
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": exchange["status"], "headers": headers_of(exchange)})
            events = exchange["body"].encode().split(b"\n\n")
            if len(events) == 1:
                await send({"type": "http.response.body", "body": events[0]})
                return
            for event in events[:-1]:
                await send({"type": "http.response.body", "body": event + b"\n\n", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return app

    return application


@pytest.fixture
def request_to():
    """Serves one request to an application, as a server does; returns what it sent."""

    async def serve(app, exchange, *, pieces=1, prefix="", headers=(), disconnect_after=None):
        body = json.dumps(exchange["request"]).encode()
        step = -(-len(body) // pieces)
        parts = [body[at : at + step] for at in range(0, len(body), step)]
        incoming = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]
        sent, gone = [], asyncio.Event()
        if disconnect_after == 0:
            gone.set()

        async def receive():
            if incoming:
                return incoming.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if len(sent) == disconnect_after:
                gone.set()

        scope = {"type": "http", "method": "POST", "path": prefix + exchange["path"], "headers": list(headers)}
        await app(scope, receive, send)
        return sent

    return serve


@pytest.fixture
def ask(middleware, replay, request_to):
    """Serves a recorded exchange through the middleware, or an application in its place; what was sent."""

    async def serve(exchange, app=None, **options):
        return await request_to(middleware(app or replay(exchange)), exchange, **options)

    return serve


@pytest.fixture
def connect(socket_path):
    """A sender of raw packets."""
    made = []

    def open_one():
        made.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
        made[-1].connect(socket_path)
        return made[-1]

    yield open_one
    for one in made:
        one.close()
