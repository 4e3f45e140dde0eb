"""A TCP relay whose link can be made slow, cut or dead."""

import asyncio
import contextlib
import socket
import struct
from typing import Self

_CHUNK = 4096
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: close sends RST


class Relay:
    """Forwards connections to a port of this machine, inside ``async with``; settings affect new and open ones.

    ``delay`` is in seconds each way, ``rate`` in bytes per second each way (0: no limit). While ``dead``, bytes are
    accepted and dropped.
    """

    def __init__(self, to: int) -> None:
        self.delay = 0.0
        self.rate = 0.0
        self.dead = False
        self.port = 0
        self._to = to
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Accepts connections, on the same port as before."""
        if self._server is not None and self._server.is_serving():
            return
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def reset(self) -> None:
        """Resets every open connection."""
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """Resets every open connection, and refuses others until ``listen``."""
        if self._server is not None:
            self._server.close()
        self.reset()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in writers:
                with contextlib.suppress(OSError, AttributeError):  # it may be closed already
                    one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction; when it ends, the other ends too once idle, as in HTTP/1.1 without half-closing."""
        while data := await reader.read(_CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.rate:
                await asyncio.sleep(len(data) / self.rate)
            while self.dead:
                await asyncio.sleep(0.05)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
