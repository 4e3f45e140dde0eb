"""``python -m benchmarks.speedup.poll --url http://VLLM --beside CHECKOUT``: the cost of a poll, before and now.

Two versions of the sidecar poll the same vLLM in turn, round by round, each in a process of its own. ``CHECKOUT`` is a
work tree of the other version: ``git worktree add /tmp/before COMMIT``.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.engine.lines import PageLimits
from sidecar.engine.page_source import PageSource

_POLLS = 300


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--beside", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(asyncio.run(_polls(arguments.url))))
        return
    found: dict[str, list[dict[str, float]]] = {arguments.beside: [], str(Path.cwd()): []}
    for _ in range(arguments.rounds):
        for checkout, rounds in found.items():
            command = [sys.executable, __file__, "--url", arguments.url, "--beside", "", "--once"]
            environment = {**os.environ, "PYTHONPATH": checkout}
            rounds.append(json.loads(subprocess.check_output(command, env=environment, cwd=checkout)))
    print("| | before | now |\n|---|---|---|")
    for name in found[arguments.beside][0]:
        print(f"| {name} | {' | '.join(f'{_median(rounds, name):.4g}' for rounds in found.values())} |")


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in rounds)


class _Watched(Fetcher):
    """Keeps the last exchange."""

    path, lines = "", 0

    async def get(self, path: str) -> bytes:
        body = await super().get(path)
        self.path, self.lines = path, body.count(b"\n")
        return body


async def _polls(url: str) -> dict[str, float]:
    fetcher = _Watched(url, FetchOptions())
    source = PageSource(fetcher, PageLimits(), filtered=True)
    names = lines = 0
    waits: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_POLLS):
        begun, used = time.perf_counter(), time.process_time()
        await source.next()
        if source.filtered:
            names, lines = fetcher.path.count("name"), fetcher.lines
        waits[source.filtered].append(time.perf_counter() - begun)
        cpu[source.filtered].append(time.process_time() - used)
    await fetcher.close()
    return {
        "names asked for": names,
        "lines of the filtered page": lines,
        "filtered poll, ms": statistics.median(waits[True]) * 1e3,
        "whole poll, ms": statistics.median(waits[False]) * 1e3,
        "CPU of a filtered poll here, µs": statistics.median(cpu[True]) * 1e6,
        "CPU of a whole poll here, µs": statistics.median(cpu[False]) * 1e6,
    }


if __name__ == "__main__":
    main()
