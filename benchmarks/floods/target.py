"""A running server under attack, and another client of it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOST = b"Host: vllm:8000\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
PROBE = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
MOST_CLIENTS = 4096  # the proxy may have

Effect = tuple[str, float]  # in words, and the figure that has a bar
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Target:
    """One running proxy under attack."""

    name: str
    port: int
    upstream: int
    pid: int
    folder: Path
    waits: list[float] = field(default_factory=list)  # seconds that another client's requests took

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, key: str = "VmRSS") -> float:
        """MiB resident: now, or at its peak (``VmHWM``)."""
        return int(Path(f"/proc/{self.pid}/status").read_text().partition(f"{key}:")[2].split()[0]) / 1024

    def to_upstream(self) -> int:
        """Connections to the upstream that are established."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        links = [str(path.readlink()) for path in self._descriptors()]
        mine = {link[8:-1] for link in links if link.startswith("socket:")}
        return sum(int(row[2][-4:], 16) == self.upstream and row[3] == "01" and row[9] in mine for row in rows)

    def _descriptors(self) -> list[Path]:
        return [path for path in Path(f"/proc/{self.pid}/fd").iterdir() if path.is_symlink()]

    async def connect(self) -> Stream:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes = PROBE) -> bytes:
        """The status line that a new client gets; empty if there is none."""
        try:
            reader, writer = await self.connect()
            writer.write(request)
            async with asyncio.timeout(60):
                status = await reader.readline()
            writer.transport.abort()
        except (OSError, TimeoutError):
            return b""
        return status


def abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection; a reference to this also keeps the writer, without which the connection would close."""
    writer.transport.abort()


@asynccontextmanager
async def probing(target: Target, request: bytes = PROBE, end: bytes = b"{}") -> AsyncIterator[None]:
    """Another client, which sends requests all the time on its own connection; ``end`` ends each response."""

    async def ask() -> None:
        reader, writer = await target.connect()
        while True:
            start = time.monotonic()
            writer.write(request)
            await reader.readuntil(end)
            target.waits.append(time.monotonic() - start)
            await asyncio.sleep(0.005)

    target.waits.clear()
    task = asyncio.create_task(ask())
    await asyncio.sleep(0.2)
    try:
        yield
    finally:
        await asyncio.sleep(0.2)
        task.cancel()
