"""The relay with an observer that sniffs as the real one does: ``python -m benchmarks.proxy.relay_process PORT``."""

import asyncio
import sys
import time
from collections import deque

import structlog
import uvloop

from sidecar.requests.proxy.observer import Headers
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.outcomes import ExchangeOutcome
from sidecar.requests.proxy.server import ProxyServer


class Sniff:
    """Counts events and keeps the last three pieces."""

    def __init__(self) -> None:
        self.events = 0
        self.last: deque[bytes] = deque(maxlen=3)

    def request_piece(self, piece: bytes) -> None: ...

    def request_end(self) -> None: ...

    def reply_head(self, status: int, headers: Headers) -> None: ...

    def reply_piece(self, piece: bytes) -> None:
        self.events += piece.count(b"\n\n")
        self.last.append(piece)

    def finished(self, outcome: ExchangeOutcome) -> None: ...


async def main(port: int) -> None:
    proxy = ProxyServer(
        Upstream("127.0.0.1", port), ProxyOptions(), lambda *_: Sniff(), time.monotonic, structlog.get_logger()
    )
    print((await proxy.start("127.0.0.1", 0))[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
