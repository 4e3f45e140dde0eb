"""What the rules cost beside those of a commit: ``python -m benchmarks.rules.beside COMMIT``.

Further arguments are the number of pods (200) and for how many minutes it measures (8).

A Prometheus with the rules of the working tree, one with those of the commit and one without any
scrape the same pods in the same run. Each pod is a copy of one real page, on which nothing fires.
Its rate is known for more than an hour, since young pods are compared with others. The CPU time is
that of the whole process less that of the one without rules: it includes writing what is recorded.
On a machine without time for every evaluation it says nothing.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.rules.page import calm, counters_of, later, real_page, reduced
from benchmarks.rules.prometheus import RULES, cpu_seconds, own_metric, scraping_pods, serving
from tests.debian_servers import Prometheus, running_prometheus

_FILES = ("recording.yaml", "alerts.yaml")
_SECONDS = 30.0
_MISSED = "prometheus_rule_group_iterations_missed_total"
_FIRST = 4  # minutes until all that is recorded is there
_KNOWN = 4800  # seconds


async def main(commit: str, pods: int, minutes: float) -> int:
    whole = await real_page(20)
    async with AsyncExitStack() as stack:
        old = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(_write_rules_of, commit, old)
        text = "".join((rules / name).read_text() for rules in (RULES, old) for name in _FILES)
        page = calm(reduced(whole, text))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        body = _growing(page, counters_of(whole))
        config = scraping_pods(await stack.enter_async_context(serving(body)), pods)
        running = [
            await stack.enter_async_context(_with_rules(http, rules, config, page, pods))
            for rules in (RULES, old, None)
        ]
        await asyncio.sleep(_FIRST * 60)
        before, since = await _spent(http, running), time.monotonic()
        await asyncio.sleep(minutes * 60)
        after, part = await _spent(http, running), _SECONDS / (time.monotonic() - since)
        missed = sum([await own_metric(http, one, _MISSED) for one in running])
    new, then, scraping = [(now - was) * part for was, now in zip(before, after, strict=True)]
    print(
        f"CPU in {_SECONDS:g} s over {pods} pods: {new - scraping:.3f} s, by the rules of {commit}"
        f" {then - scraping:.3f} s: {(new - scraping) / (then - scraping):.2f} times as much;"
        f" scraping alone {scraping:.3f} s; {missed:g} evaluations were missed"
    )
    return int(new > then or missed > 0)


def _write_rules_of(commit: str, directory: Path) -> None:
    for name in _FILES:
        command = ["git", "show", f"{commit}:alerts/{name}"]
        shown = subprocess.run(command, check=True, capture_output=True)
        (directory / name).write_bytes(shown.stdout)


def _growing(page: str, counters: set[str]) -> Callable[[], bytes]:
    """The page as of each call of the result: its counters grow from now on."""
    begun = time.monotonic()
    return lambda: later(page, counters, 1 + int(time.monotonic() - begun) / 20)


@asynccontextmanager
async def _with_rules(
    http: aiohttp.ClientSession,
    rules: Path | None,
    config: dict[str, Any],
    page: str,
    pods: int,
) -> AsyncIterator[Prometheus]:
    """A Prometheus with the rules of this directory, or without any, that knows each pod's rate."""
    with tempfile.TemporaryDirectory() as name:
        await asyncio.to_thread(_write_rates, Path(name), page, pods)
        files = [str(rules / file) for file in _FILES] if rules else []
        own = config | {"rule_files": files}
        async with running_prometheus(http, Path(name), own) as running:
            yield running


async def _spent(http: aiohttp.ClientSession, running: list[Prometheus]) -> list[float]:
    return [await cpu_seconds(http, prometheus) for prometheus in running]


def _write_rates(directory: Path, page: str, pods: int) -> None:
    """The recorded rate of each pod's model, until now."""
    rate = next(line for line in page.splitlines() if "specdec_model_acceptance_ratio{" in line)
    labels, _, value = rate.partition("{")[2].rpartition("} ")
    now = int(time.time()) // 60 * 60
    with (directory / "rates.om").open("w") as file:
        for pod in range(pods):
            own = f'{labels},job="vllm",instance="pod-{pod}:9911"'
            file.writelines(
                f"pod:specdec_acceptance:judged{{{own}}} {value} {at}\n"
                for at in range(now - _KNOWN, now, 60)
            )
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "rates.om", "prometheus"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=600)


if __name__ == "__main__":
    commit, *given = sys.argv[1:4]
    pods, minutes = [*map(float, given), *(200.0, 8.0)[len(given) :]]
    sys.exit(asyncio.run(main(commit, int(pods), minutes)))
