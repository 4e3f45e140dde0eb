"""A running server under attack, and another client of it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOST = b"Host: vllm:8000\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
PROBE = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
MOST_CLIENTS = 4096  # the proxy may have

Effect = tuple[str, float]  # in words, and the figure that has a bar
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Wait:
    """How long another client's requests took, in seconds, and how many failed."""

    median: float = 0.0
    longest: float = 0.0
    failed: int = 0


@dataclass
class Target:
    """One running server under attack. ``probe`` is the port and the path that another client asks meanwhile."""

    name: str
    port: int
    probe: tuple[int, str]
    upstream: int
    pid: int
    folder: Path
    wait: Wait = field(default_factory=Wait)

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


@contextmanager
def probing(target: Target) -> Iterator[None]:
    """Has another client ask while the block runs."""
    command = [sys.executable, "-m", "benchmarks.floods.probe", *map(str, target.probe)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it is asking
    try:
        yield
    finally:
        found, _ = process.communicate()
        target.wait = Wait(*json.loads(found))
