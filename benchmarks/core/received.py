"""What the plug-ins' messages cost.

Eight engines send 1,000 finished requests a second through the socket.
"""

import asyncio
import itertools
import json
import multiprocessing
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter

from benchmarks.core.pages import later, real_page, with_engines
from benchmarks.core.product import finished, hello, packed, report
from benchmarks.table import Row
from sidecar.analysis.state import State
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.snapshot import EngineSnapshot, SnapshotReader
from sidecar.requests.messages import MAX_ITEMS, VERSION, Hello, ReportPart
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import load_settings

_ENGINES = 8
_REQUESTS = 125  # per engine and second
_SECONDS = 10
_BEGIN = 1000  # the first second


def _packets(engine: EngineSnapshot, second: int) -> list[bytes]:
    """The packets that an engine's plug-in sends in one second."""
    requests = [finished(number, second) for number in range(_REQUESTS)]
    parts = [requests[start : start + MAX_ITEMS] for start in range(0, _REQUESTS, MAX_ITEMS)]
    finished_parts = [ReportPart(finished=tuple(part)) for part in parts]
    whole = [report(engine, second, ()), *finished_parts]
    return [_packet("report", packed(part)) for part in whole]


def _packet(kind: str, message: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, kind: message}, separators=(",", ":")).encode()


def _send(path: Path, engines: list[EngineSnapshot]) -> None:
    """Sends for each engine once per second, one engine after the other."""
    connections = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in engines]
    for connection, engine in zip(connections, engines, strict=True):
        connection.connect(str(path))
        introduction = TypeAdapter(Hello).dump_python(hello(engine), mode="json")
        connection.send(_packet("hello", introduction))
    for second in itertools.count(_BEGIN):
        for connection, engine in zip(connections, engines, strict=True):
            for packet in _packets(engine, second):
                connection.send(packet)
            time.sleep(1 / _ENGINES)


async def _measured(*, with_requests: bool) -> tuple[float, int]:
    """CPU seconds and finished requests received, each per second.

    The CPU time is that of polling and, if asked, receiving.
    """
    settings = load_settings(None, {})
    state = State(settings, 0.0)
    reader = PageReader(names.wanted(), settings.limits)
    snapshots = SnapshotReader()
    page = with_engines(real_page(), _ENGINES)
    engines = list(snapshots.read(reader.read(page)).engines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plugin.sock"
        async with PluginReceiver(path, state.plugin.receive, structlog.get_logger()):
            sender = multiprocessing.get_context("spawn").Process(
                target=_send, args=(path, engines)
            )
            if with_requests:
                sender.start()
                while not state.report(0.0).plugin.events:
                    await asyncio.sleep(0.1)
            before, begun = state.report(0.0).plugin.events, time.process_time()
            for second in range(_BEGIN, _BEGIN + _SECONDS):
                await asyncio.sleep(1)
                state.scraped(
                    float(second), 0.002, 1.0, snapshots.read(reader.read(later(page, second)))
                )
                state.report(float(second))
            cost = (time.process_time() - begun) / _SECONDS
            if with_requests:
                sender.terminate()
                sender.join()
        return cost, (state.report(0.0).plugin.events - before) // _SECONDS


def received_rows() -> list[Row]:
    """The whole path into the state, compared with decoding the same packets with ``json``."""
    alone, _ = asyncio.run(_measured(with_requests=False))
    whole, events = asyncio.run(_measured(with_requests=True))
    page = PageReader(names.wanted(), load_settings(None, {}).limits).read(real_page())
    packets = _packets(SnapshotReader().read(page).engines[0], _BEGIN)
    begun = time.process_time()
    for packet in packets * _ENGINES:
        json.loads(packet)
    decoded = time.process_time() - begun
    what = f"1,000 finished requests a second from {_ENGINES} engines"
    measured = (
        f"{events} a second taken in: {whole - alone:.2%}; json.loads of the same packets alone:"
        f" {decoded:.2%}"
    )
    return [Row(what, measured, 100 * (whole - alone), at_most=3, unit="% of a core")]
