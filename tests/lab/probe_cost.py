"""What the sidecar's own request costs others: ``python -m tests.lab.probe_cost [PAIRS]``.

It needs ``make lab`` to have run. Eight requests run all the time, while a sidecar with
``probe.interval`` and one without it watch vLLM in turns. Each pair of turns gives the change of
the time per token and of the sidecar's CPU time; what is told is their mean, and the upper end of
its 95 % interval. No request may have been sent meanwhile, so that only the sidecar's CPU time is
left to slow a step: it is known far more exactly than the time per token, which differs by percents
from turn to turn. Then vLLM is idle, and three requests tell how long one takes: in a vLLM that has
work again just then, it costs no more than that, once in the least interval. A pair takes three
minutes.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import Row, report
from tests.lab.conftest import Lab, page_until, sidecar
from tests.lab.test_lab_health import PROBED_AFTER, long_requests
from tests.page import Page

RUNNING = 8
SETTLED = 10  # seconds
TURN = PROBED_AFTER + 15  # seconds: a sidecar that may ask would do so in each
TOKENS = 128  # of a reply; many replies a turn, so that their contexts are the same in all turns
MOST_COST = 0.2  # percent
PROBED = {"probe__interval": f"{PROBED_AFTER}s"}


@dataclass(frozen=True)
class Turn:
    """What a sidecar took of a vLLM's time."""

    seconds: float  # per token of a running request
    cpu: float  # of the sidecar's own process, cores
    sent: float  # requests


async def turn(vllm, **settings):
    async with sidecar(vllm, **settings) as ours:
        await page_until(ours, lambda page: page.up)
        await asyncio.sleep(SETTLED)
        before, cpu, begun = await generated(vllm), await cpu_seconds(ours), time.monotonic()
        await asyncio.sleep(TURN)
        after, now, ended = await generated(vllm), await cpu_seconds(ours), time.monotonic()
        sent = (await ours()).sum("specdec_probes_total")

    took = ended - begun
    return Turn(seconds=RUNNING * took / (after - before), cpu=(now - cpu) / took, sent=sent)


async def cpu_seconds(ours):
    return (await ours()).sum("process_cpu_seconds_total")


async def generated(vllm):
    return (await Page(vllm.url)()).sum("vllm:generation_tokens_total")


async def pairs_of_turns(vllm, pairs):
    """Each without the probe and with it."""
    found = []
    async with long_requests(vllm.url, count=RUNNING, tokens=TOKENS):
        await turn(vllm)  # warms up
        for number in range(pairs):
            by_probe = {}
            for settings in [PROBED, {}] if number % 2 else [{}, PROBED]:
                by_probe[bool(settings)] = await turn(vllm, **settings)
            found.append((by_probe[False], by_probe[True]))
    return found


async def seconds_of_one(vllm):
    """The longest of three requests to an idle vLLM."""
    longest = 0.0
    async with sidecar(vllm, **PROBED) as ours:
        for number in (1, 2, 3):
            page = await page_until(
                ours,
                lambda page, number=number: (
                    page.value("specdec_probes_total", outcome="answered") == number
                ),
            )
            longest = max(longest, page.value("specdec_probe_duration_seconds"))
    return longest


def of_the_probe(what, changes):
    """The mean of the changes, in percent, and the upper end of its 95 % interval."""
    mean = statistics.mean(changes)
    upper = mean + 2 * statistics.stdev(changes) / len(changes) ** 0.5
    measured = f"{mean:+.3f} % in {len(changes)} pairs of {TURN} s"
    return Row(what, measured, upper, at_most=MOST_COST, unit="%")


def rows(found, seconds):
    sent = sum(probed.sent for _, probed in found)
    share = 100 * seconds / PROBED_AFTER
    yield Row(f"requests sent while {RUNNING} run", f"{len(found)} turns", sent, at_most=0)
    yield of_the_probe(
        f"time per token at {RUNNING} running, upper 95 %",
        [100 * (probed.seconds / plain.seconds - 1) for plain, probed in found],
    )
    yield of_the_probe(
        "CPU time of the sidecar, of a core, upper 95 %",
        [100 * (probed.cpu - plain.cpu) for plain, probed in found],
    )
    yield Row(
        f"the longest of three, once in {PROBED_AFTER} s",
        f"{1000 * seconds:.0f} ms",
        share,
        at_most=MOST_COST,
        unit="%",
    )


async def main(pairs):
    with tempfile.TemporaryDirectory() as folder:
        vllm = Lab("draft_model", folder=Path(folder))
        try:
            await vllm.start()
            found = await pairs_of_turns(vllm, pairs)
            return report(rows(found, await seconds_of_one(vllm)))
        finally:
            vllm.kill()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)))
