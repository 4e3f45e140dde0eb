"""By how much numerics change log-probabilities: ``python -m tests.lab.numerics_table [TARGET]``.

It needs ``make lab`` to have run.

``fidelity`` lets greedy outputs part where the reference preferred its token by at most 0.3 nat.
This measures what that limit has to cover: the same target decodes one token at a time with 16
requests at once, with one at a time, and verifies the tokens of a draft, which are other shapes of
its matrices. At each position up to the first difference, the gap between the two likeliest tokens
is compared with that of 16 at once; a row has the quantiles of by how much it is another one.
"""

import asyncio
import statistics
import sys

from sidecar.commands.load.client import Client
from sidecar.commands.load.workload import RequestOptions
from sidecar.commands.outputs.replies import greedy_replies
from tests.lab.conftest import Lab
from tests.lab.fidelity_table import CONCURRENCY, GREEDY, GREEDY_TOKENS

COLUMNS = ("decoded", "positions", "P50, nat", "P99, nat", "largest, nat", "smallest gap, nat")


async def replies(url, concurrency):
    options = RequestOptions(prompts=GREEDY, endpoint="completions")
    async with Client(url, options) as client:
        await client.connect(GREEDY[0])
        return await greedy_replies(client, GREEDY, GREEDY_TOKENS, concurrency, with_likely=True)


def gap(likely, first, second):
    """By how much ``first`` is likelier, in nat; None if one is not among the likeliest."""
    if first not in likely or second not in likely:
        return None
    return likely[first] - likely[second]


def differences(tested, reference):
    """Of the gap between the reference's two likeliest tokens, and those gaps."""
    changes = []
    gaps = []
    for reply, other in zip(tested, reference, strict=True):
        for place, likely in enumerate(other.likely):
            first, second = sorted(likely, key=likely.get, reverse=True)[:2]
            expected = gap(likely, first, second)
            found = gap(reply.likely[place], first, second)
            gaps.append(expected)
            if found is not None:
                changes.append(abs(found - expected))
            if reply.tokens[place] != other.tokens[place]:
                break  # what follows has another beginning
    return changes, gaps


def row(name, tested, reference):
    changes, gaps = differences(tested, reference)
    quantiles = statistics.quantiles(changes, n=100)
    numbers = (quantiles[49], quantiles[98], max(changes), min(gaps))
    return line(name, f"{len(changes):,}", *(f"{number:.3f}" for number in numbers))


def line(*columns):
    return f"| {' | '.join(columns)} |"


async def main(target="target"):
    print(f"{line(*COLUMNS)}\n|{'---|' * len(COLUMNS)}", flush=True)
    plain = Lab("off", "--target", target)
    try:
        await plain.start()
        reference = await replies(plain.url, CONCURRENCY)
        alone = await replies(plain.url, 1)
        print(row("one request at a time", alone, reference), flush=True)
        again = await replies(plain.url, CONCURRENCY)
        print(row("16 at once, again", again, reference), flush=True)
    finally:
        plain.kill()

    drafting = Lab("draft_model", "--target", target)
    try:
        await drafting.start()
        for at_once in (1, CONCURRENCY):
            verified = await replies(drafting.url, at_once)
            print(row(f"verified, {at_once} at once", verified, reference), flush=True)
    finally:
        drafting.kill()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
