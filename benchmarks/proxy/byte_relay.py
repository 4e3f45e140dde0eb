"""The references on uvloop: ``python -m benchmarks.proxy.byte_relay PORT [json]``.

It forwards bytes without reading them, which is what a proxy in Python costs before it does anything. With ``json`` it
also decodes both bodies with ``json.loads``, the least that learning temperature and tokens costs in Python.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One end of a pair; what it receives goes to the other end."""

    def __init__(self, port: int | None, *, decode: bool) -> None:
        self.port = port  # to connect to; None for the upstream's end
        self.decode = decode
        self.other: asyncio.Transport | None = None
        self.waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.port is not None:
            self.dial = asyncio.get_running_loop().create_task(self.connect(self.port))

    async def connect(self, port: int) -> None:
        peer = Side(None, decode=self.decode)
        peer.other = self.transport
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: peer, "127.0.0.1", port)
        self.other = transport
        transport.write(self.waiting)

    def data_received(self, data: bytes) -> None:
        if self.decode and data.endswith(b"}"):
            json.loads(data.partition(b"\r\n\r\n")[2])
        if self.other is not None:
            self.other.write(data)
        else:
            self.waiting += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.other is not None:
            self.other.close()


async def main(port: int, *, decode: bool) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Side(port, decode=decode), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), decode="json" in sys.argv))
