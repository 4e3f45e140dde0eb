"""The relay with an observer that sniffs as the real one does: ``python -m benchmarks.proxy.relay_process PORT``."""

import asyncio
import sys
import time
from collections import deque

import structlog
import uvloop

from sidecar.requests.proxy import ExchangeOutcome, Headers, Relay, RelayOptions, Upstream


class Sniff:
    """Counts events and keeps the last three pieces."""

    def __init__(self) -> None:
        self.events = 0
        self.last: deque[bytes] = deque(maxlen=3)

    def request_head(self, method: bytes, target: bytes, headers: Headers) -> None: ...

    def request_body(self, data: bytes) -> None: ...

    def request_end(self) -> None: ...

    def response_head(self, status: int, headers: Headers) -> None: ...

    def response_body(self, data: bytes) -> None:
        self.events += data.count(b"\n\n")
        self.last.append(data)

    def finished(self, outcome: ExchangeOutcome) -> None: ...


async def main(port: int) -> None:
    relay = Relay(Upstream("127.0.0.1", port), RelayOptions(), Sniff, time.monotonic, structlog.get_logger())
    print((await relay.start("127.0.0.1", 0))[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
