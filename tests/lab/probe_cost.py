"""What the sidecar's own request costs others: ``python -m tests.lab.probe_cost [PAIRS]``.

It needs ``make lab`` to have run. Eight requests run all the time, while a sidecar with
``probe.interval`` and one without it watch vLLM in turns. Each pair of turns gives the change of
the time per token; what is told is their mean, and the upper end of its 95 % interval. No request
may have been sent meanwhile. Then vLLM is idle, and three requests tell how long one takes: in a
vLLM that has work again just then, it costs no more than that, once in the least interval. A pair
takes three minutes.
"""

import asyncio
import statistics
import sys
import tempfile
import time
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


async def time_per_token(vllm, **settings):
    """Of a running request, in seconds; and how many requests the sidecar has sent meanwhile."""
    async with sidecar(vllm, **settings) as ours:
        await page_until(ours, lambda page: page.up)
        await asyncio.sleep(SETTLED)
        before, begun = await generated(vllm), time.monotonic()
        await asyncio.sleep(TURN)
        after, ended = await generated(vllm), time.monotonic()
        sent = (await ours()).sum("specdec_probes_total")
    return RUNNING * (ended - begun) / (after - before), sent


async def generated(vllm):
    return (await Page(vllm.url)()).sum("vllm:generation_tokens_total")


async def changes(vllm, pairs):
    """Of the time per token by the probe, in percent, one a pair; and how many were sent."""
    found, sent = [], 0.0
    async with long_requests(vllm.url, count=RUNNING, tokens=TOKENS):
        await time_per_token(vllm)  # warms up
        for number in range(pairs):
            turns = [PROBED, {}] if number % 2 else [{}, PROBED]
            seconds = {}
            for settings in turns:
                seconds[bool(settings)], more = await time_per_token(vllm, **settings)
                sent += more
            found.append(100 * (seconds[True] / seconds[False] - 1))
    return found, sent


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


def rows(found, sent, seconds):
    mean = statistics.mean(found)
    upper = mean + 2 * statistics.stdev(found) / len(found) ** 0.5
    share = 100 * seconds / PROBED_AFTER
    yield Row(f"requests sent while {RUNNING} run", f"{len(found)} turns", sent, at_most=0)
    yield Row(
        f"time per token at {RUNNING} running, upper 95 %",
        f"{mean:+.2f} % in {len(found)} pairs of {TURN} s",
        upper,
        at_most=MOST_COST,
        unit="%",
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
            found, sent = await changes(vllm, pairs)
            return report(rows(found, sent, await seconds_of_one(vllm)))
        finally:
            vllm.kill()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)))
