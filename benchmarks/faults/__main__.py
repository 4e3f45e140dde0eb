"""Faults under traffic: ``python -m benchmarks.faults [--only TEXT] [--source proxy|middleware] [--write]``.

Runs every fault whose name has TEXT with both request sources, and prints a table; ``--write`` puts it into
docs/faults.md. Exits 1 if a bar is missed. Needs Debian's prometheus and alertmanager, and root for the full disk.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import uvloop

from benchmarks.faults.clients import Clients
from benchmarks.faults.faults import FAULTS, Fault, crowded, full
from benchmarks.faults.rig import INTERVAL, RESEND, Rig, Source, rig
from benchmarks.faults.watch import Seen, seen

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
UNAVAILABLE = ("refused", "status 502", "status 503", "status 504")
CROWDED = "sidecar with 64 descriptors: 100 idle clients for 10 s"
FULL = "sidecar records onto a disk that fills up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One fault with one source. ``ours`` and ``theirs`` are requests that failed, by kind, with the sidecar's source
    and past it; the seconds are those between the first and the last of them."""

    fault: str
    source: Source
    sent: int
    ours: Counter[str]
    our_span: float
    theirs: Counter[str] | None
    their_span: float
    seen: Seen
    recovered: float  # seconds until Prometheus has a page with specdec_up 1 again
    alerted: float  # seconds until Alertmanager has the alert again

    @property
    def missed(self) -> list[str]:
        """The bars that it misses."""
        found = list(self.seen.wrong)
        if self.recovered > 2 * INTERVAL + 0.5:
            found.append("recovery")
        harmed = self.ours.total()
        if "vllm" in self.fault or "to vLLM" in self.fault:
            # vLLM itself failed. The proxy must break no more requests than it, and not for longer.
            broken, theirs = (_broken(one or Counter()) for one in (self.ours, self.theirs))
            harmed = max(broken - theirs - 4, 0) if self.theirs is not None else 0
            harmed += self.theirs is not None and self.our_span > self.their_span + 1
        if self.source == "proxy" and "sidecar" in self.fault and ("killed" in self.fault or "SIGTERM" in self.fault):
            harmed = 0  # the proxy itself was away
        return found + ["requests"] * bool(harmed)

    @property
    def row(self) -> str:
        """The row of the table."""
        what = [f"no page for {self.seen.down:.0f} s"] * (self.seen.down >= INTERVAL)
        what += [f"`specdec_up` 0 for {self.seen.vllm_down:.0f} s"] * (self.seen.vllm_down > 0)
        what += ["counters restarted"] * (self.seen.resets > 0)
        what += [f"{self.seen.requests:.0f} requests", *(f"**{one}**" for one in self.seen.wrong)]
        cells = [
            self.fault,
            self.source,
            f"{_kinds(self.ours, self.our_span)} of {self.sent}",
            "" if self.theirs is None else _kinds(self.theirs, self.their_span),
            "; ".join(what),
            f"{self.recovered:.1f} s, alert {self.alerted:.1f} s",
            "ok"
            if not self.missed
            else f"**missed**: {', '.join(one for one in self.missed if one not in self.seen.wrong) or 'numbers'}",
        ]
        return f"| {' | '.join(cells)} |"

    def _verdict(self) -> str:
        others = [one for one in self.missed if one not in self.seen.wrong] or ["numbers"]
        return f"**missed**: {', '.join(others)}" if self.missed else "ok"


def _broken(failures: Counter[str]) -> int:
    return sum(count for kind, count in failures.items() if kind not in UNAVAILABLE)


def _kinds(failures: Counter[str], span: float) -> str:
    if not failures:
        return "0"
    return ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items())) + f" in {span:.1f} s"


def _span(clients: Clients | None, since: float) -> float:
    times = [one.end for one in clients.ended if one.failure and one.end >= since] if clients else []
    return max(times) - min(times) if times else 0.0


async def measured(running: Rig, name: str, fault: Fault) -> Result:
    """Lets it happen and waits until all is well."""
    begin = time.time()
    running.unreachable.clear()
    await fault(running)
    recovered = await running.recovered()
    alerted = await running.alerted()
    await asyncio.sleep(3 * INTERVAL)
    return Result(
        fault=name,
        source=running.source,
        sent=sum(one.end >= begin for one in running.clients.ended),
        ours=running.clients.failures(begin),
        our_span=_span(running.clients, begin),
        theirs=None if running.direct is None else running.direct.failures(begin),
        their_span=_span(running.direct, begin),
        seen=await seen(running, begin, time.time()),
        recovered=recovered,
        alerted=alerted,
    )


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """256 kB of tmpfs."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def results(only: str, source: Source) -> AsyncIterator[Result]:
    """Of all faults whose name has ``only``."""
    chosen = {name: fault for name, fault in FAULTS.items() if only in name}
    if chosen:
        with tempfile.TemporaryDirectory() as folder:
            async with rig(Path(folder), source) as running:
                for name, fault in chosen.items():
                    yield await measured(running, name, fault)
    if only in CROWDED and source == "proxy":
        with tempfile.TemporaryDirectory() as folder:
            async with rig(Path(folder), source, prefix=("prlimit", "--nofile=64:64")) as running:
                yield await measured(running, CROWDED, crowded)
    if only in FULL:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder)) as disk:
            async with rig(Path(folder), source, command=("record", "--out", str(disk / "recording"))) as running:
                yield await measured(running, FULL, full)


HEAD = """# Faults

Generated by `python -m benchmarks.faults --write` ({date}): a simulated vLLM under traffic, the sidecar with both
request sources, and Debian's Prometheus ({prometheus}) and Alertmanager. Polls and scrapes are {interval:g} s
apart; a firing alert is sent again after {resend:g} s. Programs are killed with SIGKILL, a second apart, and started
two seconds later in the same order.

"Failed" are requests through the sidecar's proxy, or to a vLLM with the middleware, and for how long they failed.
"Without us" are requests of other clients that meanwhile went past the proxy to the same vLLM over the same link.
"Recovery" runs from when the last program answers again to the first page in Prometheus with `specdec_up` 1, and from
there to the firing alert at Alertmanager.

The bar: no request fails because of the sidecar unless the proxy itself is away; no counter grows by more than what the
clients caused, and no gauge outlives vLLM by more than two intervals; recovery takes at most two intervals.

| fault | source | failed | without us | Prometheus saw | recovery | |
|---|---|---|---|---|---|---|
"""


def head() -> str:
    said = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    version = (said.stdout + said.stderr).split("version ")[1].split()[0].removesuffix(",")
    return HEAD.format(date=time.strftime("%Y-%m-%d"), prometheus=version, interval=INTERVAL, resend=RESEND)


async def main(only: str, sources: list[Source], *, write: bool) -> int:
    found = []
    for source in sources:
        async for result in results(only, source):
            found.append(result)
            print(result.row, flush=True)
    if write:
        PAGE.write_text(head() + "".join(f"{result.row}\n" for result in found))
    return 1 if any(result.missed for result in found) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--source", choices=get_args(Source), action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sys.exit(uvloop.run(main(given.only, given.source or list(get_args(Source)), write=given.write)))
