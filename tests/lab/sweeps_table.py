"""What ``sweep`` says of a real vLLM: ``python -m tests.lab.sweeps_table CASE [RUNS]``.

It needs ``make lab`` to have run. The cases:

- ``nothing``: one server without speculation takes turns with itself, RUNS times (default 10). It
  ends with 1 if a run claims a difference or fails. A run takes two minutes on two cores.
- ``eagle3``: a server without speculation and one with an EAGLE-3 head, first in turns and then in
  two separate sweeps of as many rounds. Five minutes.
- ``mix``: temperatures 0 and 1 in company and alone, with what clients measure themselves. Five
  minutes.

Nothing runs longer than its limit: a sweep that takes longer ends with what it has measured.
"""

import asyncio
import json
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace

from sidecar.errors import MeasurementError
from sidecar.settings import load_settings
from specdec_tools.measuring.comparison import compare, comparison_text
from specdec_tools.measuring.measure import SweepOptions, measure_in_turns, measure_sweep
from specdec_tools.measuring.mixture import mix_changes, mix_text, mixed_levels
from specdec_tools.measuring.sweep_result import SweepLevel
from specdec_tools.measuring.workload import BUILT_IN, RequestOptions
from tests.demo.http_traffic import each_sent
from tests.lab.conftest import Lab

TOKENS = 16
BODY = {"ignore_eos": True}
LEVELS = (SweepLevel(0.0, 2), SweepLevel(1.0, 2))
REQUESTS = 8  # per level and round
ROUNDS = 8
RUN_SECONDS = 150.0
SPEEDS = ("TTFT P50", "TPOT P50", "tokens/s")

MIX = ((0.0, 50.0), (1.0, 50.0))
MIX_LEVELS = tuple(mixed_levels(MIX, (4,)))
MIX_REQUESTS = 48
MIX_SECONDS = 180.0
CLIENT_ROUNDS = 4


def options(url, *, seconds, levels=LEVELS, count=REQUESTS):
    """Those of a sweep that ends after so many seconds, whatever happens."""
    return SweepOptions(
        url=url,
        requests=RequestOptions(endpoint="completions", max_tokens=TOKENS, extra_body=BODY),
        levels=levels,
        count=count,
        rounds=ROUNDS,
        seconds=seconds,
        settings=load_settings(None, {"SPECDEC_SCRAPE_TIMEOUT": "60s"}),
    )


def say(ended, level):
    print(f"{ended + 1}: {level}", file=sys.stderr)


async def in_turns(one, other, seconds):
    """The sweeps of two servers that take turns."""
    asked = options(one.url, seconds=seconds)
    return await measure_in_turns(asked, (one.url, other.url), asyncio.Event(), say)


async def alone(server, seconds):
    """A server's sweep by itself."""
    return await measure_sweep(options(server.url, seconds=seconds), asyncio.Event(), say)


async def nothing(runs="10"):
    """A server against itself; returns the numbers of the runs that claim a difference or fail."""
    print("| run | result | claimed | largest error of TPOT P50 | rounds | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    server = Lab("off")
    numbers = range(1, int(runs) + 1)
    try:
        wrong = [run for run in numbers if not await is_nothing_claimed(server, run)]
    finally:
        server.kill()

    print(f"{len(wrong)} of {runs} claim a difference or failed: {wrong}")
    return wrong


async def is_nothing_claimed(server, run):
    """Prints a run's row. After a failure, the next run has a server of its own."""
    begun = time.monotonic()
    try:
        await server.start()
        pair = await in_turns(server, server, RUN_SECONDS)
    except (MeasurementError, AssertionError, TimeoutError) as error:
        server.kill()
        print(f"| {run} | failed: {type(error).__name__}: {error} |", flush=True)
        return False

    found = compare(*pair, names=("A", "B"))
    claimed = [f"{one.metric} {one.effect}" for one in found.changes if one.effect is not None]
    errors = [one.change.error or 0 for one in found.changes if is_median(one)]
    rounds = min(len(level.rounds) for level in pair[0].levels)
    seconds = time.monotonic() - begun
    columns = (
        *(run, found.result, ", ".join(claimed) or "nothing"),
        *(f"{max(errors, default=0):.1%}", rounds, f"{seconds:.0f}"),
    )
    print(f"| {' | '.join(map(str, columns))} |", flush=True)
    return found.result == "no_difference_shown" and not claimed


def is_median(change):
    return change.metric == "TPOT P50" and change.change is not None


async def eagle3():
    """Prints what ``compare`` says of both ways; returns the way that does not see a difference."""
    plain = Lab("off")
    eagle = Lab("eagle3")
    names = ("off", "eagle3")
    try:
        await plain.start()
        await eagle.start()
        pair = await in_turns(plain, eagle, RUN_SECONDS)
        close = compare(*pair, names=names)
        print("\n".join(comparison_text(close)), flush=True)

        separate = [await alone(server, RUN_SECONDS / 2) for server in (plain, eagle)]
        wide = compare(*separate, names=names)
    finally:
        plain.kill()
        eagle.kill()

    print("\n| level | metric | in turns | two sweeps |\n|---|---|---|---|")
    apart = {(one.level, one.metric): one for one in wide.changes}
    for one in close.changes:
        if one.metric in SPEEDS:
            other = apart.get((one.level, one.metric))
            print(f"| {one.level} | {one.metric} | {shown(one)} | {shown(other)} |")

    ways = {"in turns": close, "two sweeps": wide}
    return [way for way, found in ways.items() if found.result == "insufficient_data"]


def shown(one):
    """A change with its error and what is claimed."""
    if one is None or one.change is None:
        return "-"
    error = "no error" if one.change.error is None else f"±{one.change.error:.1%}"
    return f"{one.change.value:+.1%} {error} {one.effect or ''}".strip()


async def mix():
    """Prints what the sweep says, and what clients of our own measure of the same requests."""
    server = Lab("draft_model")
    try:
        await server.start()
        asked = options(server.url, seconds=MIX_SECONDS, levels=MIX_LEVELS, count=MIX_REQUESTS)
        result = await measure_sweep(asked, asyncio.Event(), say)
        changes = mix_changes(result)
        print("\n".join(mix_text(changes)), flush=True)
        times = await measured_by_clients(server)
    finally:
        server.kill()

    print("\n| milliseconds per token | P50 by the sweep | P50 by clients | P99 by clients |")
    print("|---|---|---|---|")
    for change in changes:
        if change.metric == "TPOT P50":
            temperature = change.level.temperature
            together = replace(change.level, temperature=None)
            print(row(f"T {temperature:g} alone", change.alone, times[change.level, temperature]))
            print(row(f"T {temperature:g} in the mix", change.mixed, times[together, temperature]))
    return [] if changes else ["mix"]


def row(name, swept, seconds):
    """A temperature's times by the sweep and by clients."""
    sweeps = "-" if swept is None else f"{1000 * swept.value:.1f}"
    median = 1000 * statistics.median(seconds)
    tail = 1000 * statistics.quantiles(seconds, n=100)[-1]
    return f"| {name} | {sweeps} | {median:.1f} | {tail:.1f} |"


async def measured_by_clients(server):
    """Seconds per output token of each request, by its level and its temperature."""
    times = defaultdict(list)
    for level in CLIENT_ROUNDS * MIX_LEVELS:

        async def one(http, request, level=level):
            number, temperature = request
            prompt = BUILT_IN[number % len(BUILT_IN)]
            seconds = await seconds_per_token(http, server.url, prompt, temperature)
            times[level, temperature].append(seconds)

        await each_sent(level.requests(MIX_REQUESTS), one, level.concurrency)
    return times


async def seconds_per_token(http, url, prompt, temperature):
    """After the first one, as the client sees the events of its stream arrive."""
    body = {
        "model": "lab",
        "prompt": prompt,
        "temperature": temperature,
        "max_tokens": TOKENS,
        "stream": True,
        **BODY,
    }
    arrivals = []
    async with http.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            data = line.removeprefix(b"data: ")
            if data.startswith(b"{") and json.loads(data)["choices"]:
                arrivals.append(time.monotonic())

    return (arrivals[-1] - arrivals[0]) / (TOKENS - 1)


CASES = {"nothing": nothing, "eagle3": eagle3, "mix": mix}


if __name__ == "__main__":
    case, *given = sys.argv[1:]
    if wrong := asyncio.run(CASES[case](*given)):
        sys.exit(f"not as it must be: {wrong}")
