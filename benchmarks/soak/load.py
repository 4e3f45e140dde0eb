"""Sends requests over kept connections, as cheaply as possible: ``Load``."""

import asyncio
import re
from itertools import cycle
from typing import cast

import msgspec

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_MIX = ((0.0, 4), (0.2, 3), (0.4, 6), (0.6, 2), (0.9, 5), (1.2, 4), (None, 3))  # temperature, tokens


def _request(temperature: float | None, tokens: int) -> bytes:
    fields = {"model": "demo", "prompt": "the quick brown fox", "max_tokens": tokens, "ignore_eos": True}
    body = msgspec.json.encode(fields | ({} if temperature is None else {"temperature": temperature}))
    head = "POST /v1/completions HTTP/1.1\r\nHost: vllm\r\nContent-Type: application/json\r\nContent-Length: "
    return f"{head}{len(body)}\r\n\r\n".encode() + body


class Load:
    """Sums over all connections."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.sent = self.completed = self.failed = self.tokens = 0

    async def run(self, port: int, connections: int) -> None:
        """Sends all requests; ``left`` may be set to 0 to end early."""
        loop = asyncio.get_running_loop()
        clients = [
            (await loop.create_connection(lambda: _Client(self), "127.0.0.1", port))[1] for _ in range(connections)
        ]
        await asyncio.gather(*(client.done for client in clients))


class _Client(asyncio.Protocol):
    """Sends the next request when the last reply is whole."""

    def __init__(self, load: Load) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._load = load
        self._requests = cycle([_request(*each) for each in _MIX])
        self._held = b""
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, separator, body = self._held.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or length is None or len(body) < int(length[1]):
            return
        tokens = _TOKENS.search(body)
        if head[9:12] == b"200" and tokens is not None:
            self._load.completed += 1
            self._load.tokens += int(tokens[1])
        else:
            self._load.failed += 1
        self._held, self._waiting = b"", False
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._load.failed += self._waiting
        if not self.done.done():
            self.done.set_result(None)

    def _next(self) -> None:
        if self._load.left <= 0:
            self._transport.close()
            return
        self._load.left -= 1
        self._load.sent += 1
        self._waiting = True
        self._transport.write(next(self._requests))
