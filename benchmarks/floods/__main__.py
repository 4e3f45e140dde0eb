"""What hostile clients cost the proxy, beside nginx: ``python -m benchmarks.floods [NAME ...] [--code DIRECTORY]``.

Prints a table; exits 1 if a bar is missed. ``--code`` takes the sidecar from another checkout, to compare.
"""

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path

import uvloop

from benchmarks.proxy import nginx

HOST = b"Host: vllm:8000\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
PROBE = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
MOST_CLIENTS = 1200  # the proxy may have

Effect = tuple[str, float]  # in words, and the figure that has a bar
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Target:
    """One running proxy under attack."""

    name: str
    port: int
    upstream: int
    pid: int
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
async def probing(target: Target) -> AsyncIterator[None]:
    """Another client, which sends requests all the time on its own connection."""

    async def ask() -> None:
        reader, writer = await target.connect()
        while True:
            start = time.monotonic()
            writer.write(PROBE)
            await reader.readuntil(b"{}")
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


async def heads(target: Target) -> Effect:
    """Row 1: 20 heads of 64 KB with 8,125 options and 2,500 lines of Connection."""
    options = b",".join(bytes(option) for option in islice(product(b"abcdefghijklmnopqrstuvwxyz", repeat=3), 8125))
    head = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: " + options + b"\r\n" + b"Connection:\r\n" * 2500 + b"\r\n"
    usual = b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 65_000 + b"\r\n\r\n"
    costs = []
    async with probing(target):
        for request in (usual, head):
            before = target.cpu()
            for _ in range(40):
                await target.ask(request)
            costs.append((target.cpu() - before) / 40 * 1000)
    text = f"{costs[1]:.1f} ms of CPU a request, one of the same size with one header {costs[0]:.1f}"
    return text, costs[1] / max(costs[0], 0.25)


async def chunks(target: Target) -> Effect:
    """Row 2: a body of 10.5 MB in one-byte chunks."""
    before = target.cpu()
    async with probing(target):
        status = await target.ask(
            POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_500_000 + b"0\r\n\r\n"
        )
    cpu = target.cpu() - before
    return f"{status[9:12].decode()}, {cpu:.2f} s of CPU", cpu


async def bodies(target: Target) -> Effect:
    """Row 3: 1,000 bodies of 1 MB, each 1 kB short of its end."""
    before = target.memory()
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            _, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 999_000)
            async with asyncio.timeout(60):
                await writer.drain()
        await asyncio.sleep(1)
        held = target.memory()
    await asyncio.sleep(1)
    return f"RSS {before:.0f}, then {held:.0f}, afterwards {target.memory():.0f} MiB", target.memory("VmHWM")


async def idle(target: Target) -> Effect:
    """Row 5: as many idle clients as there may be, and ten that come after them."""
    async with AsyncExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            reader, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(PROBE)
            async with asyncio.timeout(60):
                await reader.readline()
        served = [await target.ask() for _ in range(10)]
    refused = 10 - sum(b" 200 " in status for status in served)
    return f"{10 - refused} of 10 served", refused


async def readers(target: Target) -> Effect:
    """Row 7: 500 clients that take nothing of a large response."""
    before = target.memory()
    async with AsyncExitStack() as stack:
        for _ in range(500):
            peer = socket.socket()
            stack.callback(peer.close)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", target.port))
            peer.send(b"GET /fast HTTP/1.1\r\n" + HOST + b"\r\n")
        for _ in range(10):
            held = target.memory()
            await asyncio.sleep(2)
            if target.memory() == held:
                break
    await asyncio.sleep(1)
    return f"RSS {before:.0f}, then {held:.0f}, afterwards {target.memory():.0f} MiB", target.memory("VmHWM")


async def tiny(target: Target) -> Effect:
    """Row 10: 300 bodies of which one byte comes."""
    before = target.to_upstream()
    async with AsyncExitStack() as stack:
        for _ in range(300):
            _, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(POST + b"Content-Length: 500\r\n\r\n{")
        await asyncio.sleep(1)
        more = target.to_upstream() - before
        return f"{more} connections to vLLM", more


# Each flood and the most that its figure may be: CPU as a multiple of a usual head's, seconds of CPU, MiB at the peak,
# requests not served, connections.
FLOODS: dict[str, tuple[Callable[[Target], Awaitable[Effect]], float]] = {
    "heads": (heads, 10),
    "chunks": (chunks, 1),
    "bodies": (bodies, 128),
    "idle": (idle, 0),
    "readers": (readers, 128),
    "tiny": (tiny, 8),
}


@asynccontextmanager
async def targets(code: Path) -> AsyncIterator[list[Target]]:
    """The sidecar and nginx, fresh, in front of the same upstream."""
    async with AsyncExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.floods.upstream"]
        upstream = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - a script
        stack.callback(upstream.terminate)
        assert upstream.stdout is not None
        port = int(upstream.stdout.readline())
        listen = nginx.free_port()
        settings = {
            "PYTHONPATH": str(code),
            "SPECDEC_VLLM_URL": f"http://127.0.0.1:{port}",
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_REQUESTS__SOURCE": "proxy",
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{listen}",
            "SPECDEC_PROXY__MAX_CONNECTIONS": str(MOST_CLIENTS),
        }
        sidecar = subprocess.Popen(  # noqa: ASYNC220 - a script
            [sys.executable, "-m", "sidecar", "run"], cwd=code, env={**os.environ, **settings},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(sidecar.terminate)
        nginx.wait_for(listen)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master, nginx_port = nginx.start(folder / "nginx", port, connections=2 * MOST_CLIENTS)
        stack.callback(master.wait)
        stack.callback(master.terminate)
        yield [
            Target("proxy", listen, port, sidecar.pid),
            Target("nginx", nginx_port, port, nginx.worker(master.pid)),
        ]


async def main(names: list[str], code: Path) -> int:
    missed = 0
    print(
        "| flood | target | effect | longest wait of another client, ms | RSS peak, MiB | |\n|---|---|---|---|---|---|"
    )
    for name in names:
        flood, most = FLOODS[name]
        async with targets(code) as both:
            for target in both:
                text, figure = await flood(target)
                wait = f"{max(target.waits) * 1000:.0f}" if target.waits else ""
                verdict = ""
                if target.name == "proxy":
                    verdict = "ok" if figure <= most else "**missed**"
                    missed += figure > most
                memory = target.memory("VmHWM")
                print(f"| {name} | {target.name} | {text} | {wait} | {memory:.0f} | {verdict} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.floods", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FLOODS))
    parser.add_argument("--code", type=Path, default=Path.cwd())
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(uvloop.run(main(options.names or list(FLOODS), options.code.resolve())))
