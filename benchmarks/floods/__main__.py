"""What hostile clients cost the sidecar, beside nginx: ``python -m benchmarks.floods [NAME ...] [--code DIRECTORY]``.

Prints a table; exits 1 if a bar is missed, or if another client waits for more than 50 ms and five times as
long as with nginx. ``--code`` takes the sidecar from another checkout, to compare.
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
from benchmarks.floods.target import MOST_CLIENTS, Effect, Target, probing
from benchmarks.proxy import nginx

_LONGEST_WAIT = 0.05  # seconds
_TIMES_NGINX = 5  # multiple of the wait behind nginx that is allowed
_PAGE, _PROXY, _TRACES = "SPECDEC_LISTEN", "SPECDEC_PROXY__LISTEN", "SPECDEC_TRACES__LISTEN"


@dataclass(frozen=True)
class Flood:
    """``most`` is the bar of the figure that ``run`` returns: CPU as a multiple of a usual head's, seconds of CPU,
    MiB at the peak, requests not served, connections, share of a core; 0 if it returns none."""

    run: Callable[[Target], Awaitable[Effect]]
    most: float
    source: str = "proxy"
    port: str = _PROXY  # the target; only the proxy is compared with nginx
    probe: tuple[str, str] = (_PAGE, "/-/healthy")  # another client's request
    vllm: str = ""  # the path of the page that the sidecar polls
    files: int | None = None  # the sidecar may open
    settings: dict[str, str] = field(default_factory=dict)


OWN = partial(Flood, source="none", port=_PAGE)
FLOODS = {
    "heads": Flood(proxy.heads, 10),
    "chunks": Flood(proxy.chunks, 1),
    "bodies": Flood(proxy.bodies, 128),
    "idle": Flood(proxy.idle, 0),
    "readers": Flood(proxy.readers, 128),
    "tiny": Flood(proxy.tiny, 8),
    "full": Flood(proxy.full, 256),
    "silent": OWN(own.silent, 0),
    "scrapes": Flood(own.scrapes, 0, port=_PAGE, probe=(_PROXY, "/v1/models")),
    "engines": OWN(
        own.engines, 0, vllm="/engines", settings={"SPECDEC_SCRAPE_INTERVAL": "1s", "SPECDEC_SCRAPE_CPU_SHARE": "1"}
    ),
    "page": OWN(own.page, 1),
    "export": Flood(own.export, 1, "traces", _TRACES),
    "members": Flood(own.members, 0.1, "traces", _TRACES),
    "starts": Flood(own.starts, 0, "middleware", _PAGE),
    "passwords": OWN(own.passwords, 128, settings={"SPECDEC_WEB_CONFIG_FILE": "web.yaml"}),
    "senders": Flood(own.senders, 0.1, "middleware", _PAGE, files=64),
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
        ports = {name: nginx.free_port() for name in (_PAGE, _PROXY, _TRACES)}
        users = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
        (folder / "web.yaml").write_text(f"basic_auth_users: {{a: {users}}}")
        settings = {
            "PYTHONPATH": str(code),
            "SPECDEC_VLLM_URL": f"http://127.0.0.1:{port}{flood.vllm}",
            "SPECDEC_REQUESTS__SOURCE": flood.source,
            "SPECDEC_MIDDLEWARE__SOCKET": str(folder / "events.sock"),
            **{name: f"127.0.0.1:{number}" for name, number in ports.items()},
            **flood.settings,
        }
        with (folder / "log").open("wb") as log:
            sidecar = subprocess.Popen(  # noqa: ASYNC220 - a script
                [*_limited(flood.files), sys.executable, "-m", "sidecar", "run"],
                cwd=folder, env={**os.environ, **settings}, stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(sidecar.wait)
        stack.callback(sidecar.kill)
        nginx.wait_for(ports[flood.port])
        probe = ports[flood.probe[0]], flood.probe[1]
        found = [Target("sidecar", ports[flood.port], probe, port, sidecar.pid, folder)]
        if flood.port == _PROXY:
            master, nginx_port = nginx.start(folder / "nginx", port, connections=4 * MOST_CLIENTS)
            stack.callback(master.wait)
            stack.callback(master.terminate)
            found.append(
                Target("nginx", nginx_port, (nginx_port, "/v1/models"), port, nginx.worker(master.pid), folder)
            )
        yield found[::-1]  # nginx first: its waits are the reference


def _limited(files: int | None) -> list[str]:
    return [] if files is None else ["prlimit", f"--nofile={files}"]


async def main(names: list[str], code: Path) -> int:
    missed = 0
    print(
        "| flood | target | effect | another client waits, ms: median / longest; failed | RSS peak, MiB | |\n"
        "|---|---|---|---|---|---|"
    )
    for name in names:
        flood = FLOODS[name]
        async with targets(flood, code) as found:
            longest = _LONGEST_WAIT
            for target in found:
                with probing(target):
                    text, figure = await flood.run(target)
                verdict = ""
                if target.name == "nginx":
                    longest = max(longest, _TIMES_NGINX * target.wait.longest)
                else:
                    is_missed = figure > flood.most or target.wait.longest > longest or target.wait.failed > 0
                    verdict = "**missed**" if is_missed else "ok"
                    missed += is_missed
                wait, memory = target.wait, target.memory("VmHWM")
                waits = f"{wait.median * 1000:.1f} / {wait.longest * 1000:.0f}; {wait.failed}"
                print(f"| {name} | {target.name} | {text} | {waits} | {memory:.0f} | {verdict} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.floods", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FLOODS))
    parser.add_argument("--code", type=Path, default=Path.cwd())
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(uvloop.run(main(options.names or list(FLOODS), options.code.resolve())))
