"""What hostile clients cost the sidecar, beside nginx: ``python -m benchmarks.floods [NAME ...] [--code DIRECTORY]``.

Prints a table; exits 1 if a bar is missed. ``--code`` takes the sidecar from another checkout, to compare.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import bcrypt
import uvloop

from benchmarks.floods import own, proxy
from benchmarks.floods.target import MOST_CLIENTS, Effect, Target
from benchmarks.proxy import nginx


@dataclass(frozen=True)
class Flood:
    """``most`` is the bar of the figure that ``run`` returns: CPU as a multiple of a usual head's, seconds of CPU,
    MiB at the peak, requests not served, connections, share of a core."""

    run: Callable[[Target], Awaitable[Effect]]
    most: float
    source: str = "proxy"  # nginx is compared with the proxy only
    port: str = "SPECDEC_PROXY__LISTEN"
    files: int | None = None  # the sidecar may open
    settings: dict[str, str] = field(default_factory=dict)


OWN = partial(Flood, source="none", port="SPECDEC_LISTEN")
FLOODS = {
    "heads": Flood(proxy.heads, 10),
    "chunks": Flood(proxy.chunks, 1),
    "bodies": Flood(proxy.bodies, 128),
    "idle": Flood(proxy.idle, 0),
    "readers": Flood(proxy.readers, 128),
    "tiny": Flood(proxy.tiny, 8),
    "full": Flood(proxy.full, 256),
    "page": OWN(own.page, 1),
    "export": Flood(own.export, 1, "traces", "SPECDEC_TRACES__LISTEN"),
    "passwords": OWN(own.passwords, 128, settings={"SPECDEC_WEB_CONFIG_FILE": "web.yaml"}),
    "senders": Flood(own.senders, 0.1, "middleware", "SPECDEC_LISTEN", files=64),
}


@asynccontextmanager
async def targets(flood: Flood, code: Path) -> AsyncIterator[list[Target]]:
    """The sidecar, and nginx for a flood of the proxy, fresh, in front of the same upstream."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, "-m", "benchmarks.floods.upstream"]
        upstream = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - a script
        stack.callback(upstream.terminate)
        assert upstream.stdout is not None
        port = int(upstream.stdout.readline())
        listen = nginx.free_port()
        users = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
        (folder / "web.yaml").write_text(f"basic_auth_users: {{a: {users}}}")
        settings = {
            "PYTHONPATH": str(code),
            "SPECDEC_VLLM_URL": f"http://127.0.0.1:{port}",
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_REQUESTS__SOURCE": flood.source,
            "SPECDEC_MIDDLEWARE__SOCKET": str(folder / "events.sock"),
            **flood.settings,
            flood.port: f"127.0.0.1:{listen}",
        }
        with (folder / "log").open("wb") as log:
            sidecar = subprocess.Popen(  # noqa: ASYNC220 - a script
                [*_limited(flood.files), sys.executable, "-m", "sidecar", "run"],
                cwd=folder, env={**os.environ, **settings}, stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(sidecar.wait)
        stack.callback(sidecar.kill)
        nginx.wait_for(listen)
        found = [Target("sidecar", listen, port, sidecar.pid, folder)]
        if flood.source == "proxy":
            master, nginx_port = nginx.start(folder / "nginx", port, connections=4 * MOST_CLIENTS)
            stack.callback(master.wait)
            stack.callback(master.terminate)
            found.append(Target("nginx", nginx_port, port, nginx.worker(master.pid), folder))
        yield found


def _limited(files: int | None) -> list[str]:
    return [] if files is None else ["prlimit", f"--nofile={files}"]


async def main(names: list[str], code: Path) -> int:
    missed = 0
    print(
        "| flood | target | effect | longest wait of another client, ms | RSS peak, MiB | |\n|---|---|---|---|---|---|"
    )
    for name in names:
        flood = FLOODS[name]
        async with targets(flood, code) as found:
            for target in found:
                text, figure = await flood.run(target)
                wait = f"{max(target.waits) * 1000:.0f}" if target.waits else ""
                verdict = ""
                if target.name == "sidecar":
                    verdict = "ok" if figure <= flood.most else "**missed**"
                    missed += figure > flood.most
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
