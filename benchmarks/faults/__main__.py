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
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import uvloop

from benchmarks.faults.faults import FAULTS, Fault, crowded, full
from benchmarks.faults.rig import INTERVAL, Rig, Source
from benchmarks.faults.running import rig
from benchmarks.faults.table import Result, page
from benchmarks.faults.watch import seen

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
CROWDED = "sidecar with 64 descriptors: 100 idle clients for 10 s"
FULL = "sidecar records onto a disk that fills up"


async def measured(running: Rig, name: str, fault: Fault) -> Result:
    """Injects the fault and waits until everything has recovered."""
    names = await running.names()
    running.unreachable.clear()
    begin = time.time()
    await fault(running)
    recovered = await running.recovered()
    alerted, complete = await running.alerted(), await running.complete(names)
    await asyncio.sleep(3 * INTERVAL)
    return Result(
        fault=name,
        source=running.source,
        ours=running.clients.since(begin),
        theirs=running.direct.since(begin) if running.direct else None,
        astray=sum(
            not any(lost - INTERVAL <= one.end <= back + INTERVAL for lost, back in running.unreachable)
            for one in running.clients.ended
            if one.failure and one.end >= begin
        ),
        seen=await seen(running, begin, time.time()),
        recovered=recovered,
        alerted=alerted,
        complete=complete,
    )


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """64 kB of tmpfs."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def results(only: str, source: Source) -> AsyncIterator[Result]:
    """The results of all faults whose name contains ``only``."""
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


async def main(only: str, sources: list[Source], *, write: bool) -> int:
    found = []
    for source in sources:
        async for result in results(only, source):
            found.append(result)
            print(result.row, flush=True)
    if write:
        PAGE.write_text(page(found))
    return 1 if any(result.missed for result in found) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--source", choices=get_args(Source), action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sys.exit(uvloop.run(main(given.only, given.source or list(get_args(Source)), write=given.write)))
