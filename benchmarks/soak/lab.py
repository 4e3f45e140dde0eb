"""A real vLLM with the middleware, and a sidecar that is killed at random: ``python -m benchmarks.soak.lab``.

``--lab`` is the lab's folder; traffic is light. It prints a line per minute, and a table at the end or on SIGTERM. It
exits with 1 if a request failed, if the clients' tokens are not vLLM's, or if a page of a sidecar was wrong.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.faults.clients import Clients
from benchmarks.faults.programs import Program
from benchmarks.table import Row, report
from sidecar.commands.stopping import stop_on_signals, stopped
from sidecar.requests.middleware.bundle import standalone_source
from tests.debian_servers import free_port

UP_SECONDS = 12.0  # mean time between a sidecar's first good page and its death
DOWN_SECONDS = 4.0


async def samples(session: aiohttp.ClientSession, url: str, prefix: str) -> dict[str, float]:
    """Sums by name of the samples with this prefix; empty if the page cannot be read."""
    try:
        async with session.get(f"{url}/metrics") as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return {}
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


class Lives:
    """The sidecars that lived and were killed."""

    def __init__(self, program: Program, ours: str, vllm: str) -> None:
        self.program, self.ours, self.vllm = program, ours, vllm
        self.ready: list[float] = []  # seconds from the start to the first page with specdec_up 1
        self.requests = 0.0  # seen by the sidecars, as of the last pages that were read
        self.wrong: list[str] = []
        self._random = Random(1)

    async def run(self, until: float) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            while time.monotonic() < until:
                began = time.monotonic()
                self.program.start()
                while (await samples(session, self.ours, "specdec_up")).get("specdec_up") != 1:
                    assert self.program.running, self.program.log.read_text()
                    await asyncio.sleep(0.1)
                self.ready.append(time.monotonic() - began)
                await asyncio.sleep(self._random.expovariate(1 / UP_SECONDS))
                await self._compare(session)
                self.program.kill()
                await asyncio.sleep(self._random.expovariate(1 / DOWN_SECONDS))

    async def _compare(self, session: aiohttp.ClientSession) -> None:
        """Our counters lie between vLLM's before the last poll and vLLM's now."""
        page = await samples(session, self.ours, "specdec_")
        truth = await samples(session, self.vllm, "vllm:")
        self.requests += page.get("specdec_requests_total", 0.0)
        for ours, theirs in (
            ("specdec_generation_tokens_total", "vllm:generation_tokens_total"),
            ("specdec_engine_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        ):
            if page.get("specdec_up") == 1 and page[ours] > truth[theirs]:
                self.wrong.append(f"{ours} {page[ours]} of {truth[theirs]}")
        if page.get("specdec_draft_tokens_total", 0.0) > page.get("specdec_engine_draft_tokens_total", 0.0):
            self.wrong.append("more draft tokens attributed than counted")


async def main(lab: Path, seconds: float) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "specdec_observe.py").write_text(standalone_source())
        socket, port, own = folder / "events.sock", free_port(), free_port()
        url, ours = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"
        environment = {
            "PORT": str(port),
            "PYTHONPATH": name,
            "SPECDEC_MIDDLEWARE__SOCKET": str(socket),
        }
        options = ("draft_model", "--middleware", "specdec_observe.ObserveRequests")
        vllm = Program(folder / "vllm.log", str(lab / "serve"), *options, environment=environment)
        settings = {
            "SPECDEC_VLLM_URL": url,
            "SPECDEC_LISTEN": f"127.0.0.1:{own}",
            "SPECDEC_REQUESTS__SOURCE": "middleware",
            "SPECDEC_MIDDLEWARE__SOCKET": str(socket),
        }
        program = Program(folder / "sidecar.log", sys.executable, "-m", "sidecar", "run", environment=settings)
        lives = Lives(program, ours, url)
        stop = stop_on_signals()
        clients = Clients(url, model="lab", number=2, max_tokens=60, pause=0.5)
        try:
            vllm.start()
            await vllm.until_answers(f"{url}/health")
            before = await _generated(url)
            print("vLLM answers", flush=True)
            begun = time.monotonic()
            clients.start()
            killing = asyncio.create_task(lives.run(begun + seconds))
            while not killing.done() and not stop.is_set():
                await stopped(stop, 60)
                print(f"{_minutes(begun)}: {len(clients.ended)} requests, {clients.since().failures.total()} failed, "
                      f"{len(lives.ready)} lives", flush=True)  # fmt: skip
            await clients.stop()
            if killing.done():
                killing.result()
            killing.cancel()
            lasted, generated = _minutes(begun), await _generated(url) - before
        finally:
            lives.program.kill()
            vllm.kill()
        print(f"\n{lasted}; {len(lives.ready)} lives of the sidecar, which saw {lives.requests:.0f} requests\n")
        failed = clients.since().failures
        lost = generated - clients.tokens
        return report(
            [
                Row("requests failed", f"{dict(failed)} of {len(clients.ended)}", failed.total(), at_most=0),
                Row("vLLM's tokens that no client got", f"of {generated:.0f}", lost, at_most=0),
                Row("pages that were wrong", "; ".join(lives.wrong[:3]) or "none", len(lives.wrong), at_most=0),
                Row("start to specdec_up 1, longest", f"median {sorted(lives.ready)[len(lives.ready) // 2]:.1f} s",
                    max(lives.ready), at_most=30, unit="s"),
            ]
        )  # fmt: skip


async def _generated(url: str) -> float:
    async with aiohttp.ClientSession() as session:
        return (await samples(session, url, "vllm:generation_tokens"))["vllm:generation_tokens_total"]


def _minutes(since: float) -> str:
    return f"{(time.monotonic() - since) / 60:.1f} min"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.soak.lab", description=__doc__)
    parser.add_argument("--lab", type=Path, default=Path("../shared/lab"))
    parser.add_argument("--minutes", type=float, default=60)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.lab.resolve(), given.minutes * 60)))
