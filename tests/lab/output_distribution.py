"""Whether speculation changes what vLLM puts out.

Run it as ``python -m tests.lab.output_distribution 20000 [SERVER WAY]``.

It prints a row of the table in docs/measurements/why.md for each way of drafting and of sampling,
from so many tokens. The lab's target is a Markov chain, so its output is what follows each token,
and how often. A chi-square test compares that with plain decoding's. Plain decoding is compared
with itself too, where nothing may differ, and with itself at a temperature 0.1 higher, which the
test must notice.
"""

import asyncio
import json
import sys
from collections import Counter, defaultdict
from itertools import count, pairwise, takewhile
from statistics import NormalDist

from tests.demo.http_traffic import each_sent, exchange
from tests.lab.conftest import Lab, counters

STRUCTURED = {"structured_outputs": {"regex": "[a-z ]+"}}
FILTERED = {"top_k": 20, "top_p": 0.8}
WAYS = {
    "T 0.7": {"temperature": 0.7},
    "T 1": {"temperature": 1.0},
    "T 1, top-k 20, top-p 0.8": {"temperature": 1.0, **FILTERED},
    "T 1, penalty": {"temperature": 1.0, "frequency_penalty": 0.02},
    "T 1, structured": {"temperature": 1.0, **STRUCTURED},
    "T 1, structured, filtered": {"temperature": 1.0, **STRUCTURED, **FILTERED},
}
CHECKED = ("T 1", "T 1, structured")
SAMPLED = {"draft_sample_method": "probabilistic"}
SERVERS = {
    "draft_model, greedy": ("draft_model",),
    "draft_model, probabilistic": ("draft_model", "--speculative", json.dumps(SAMPLED)),
    "eagle, greedy": ("eagle",),
    "eagle, probabilistic": ("eagle", "--speculative", json.dumps(SAMPLED)),
}
FEWEST = 10  # times that a pair is seen, in both together, to be a class of its own


async def followers(url, sampling, tokens):
    """What followed each token in so many tokens of output: {token: Counter of the next}."""
    body = {
        "model": "lab",
        "prompt": "verify",
        "max_tokens": 400,
        "return_token_ids": True,
        **sampling,
    }
    if "structured_outputs" not in sampling:
        body["ignore_eos"] = True  # a grammar ends where the end is chosen
    found, seen = defaultdict(Counter), 0

    async def one(http, _):
        nonlocal seen
        (choice,) = (await exchange(http, f"{url}/v1/completions", body))["choices"]
        seen += len(choice["token_ids"])
        for token, follower in pairwise(choice["token_ids"]):
            found[token][follower] += 1

    await each_sent(takewhile(lambda _: seen < tokens, count()), one, 16)
    return found


def chi_square(one, other):
    """(chi-square, degrees of freedom, p) of two samples of what follows each token."""
    square = freedom = 0
    for token in one.keys() & other.keys():
        both = one[token] + other[token]
        classes = {
            follower: follower if times >= FEWEST else None for follower, times in both.items()
        }
        counts = [defaultdict(int), defaultdict(int)]
        for side, sample in zip(counts, (one[token], other[token]), strict=True):
            for follower, times in sample.items():
                side[classes[follower]] += times
        first, second = sum(counts[0].values()), sum(counts[1].values())
        kept = [
            name for name in set(classes.values()) if counts[0][name] + counts[1][name] >= FEWEST
        ]
        if min(first, second) < FEWEST or len(kept) < 2:
            continue
        freedom += len(kept) - 1
        for name in kept:
            a, b = counts[0][name], counts[1][name]
            square += (a * (second / first) ** 0.5 - b * (first / second) ** 0.5) ** 2 / (a + b)
    # Wilson and Hilferty's approximation, good to 0.001 for the hundreds of degrees here
    spread = 2 / (9 * freedom)
    return (
        square,
        freedom,
        1 - NormalDist().cdf(((square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5),
    )


async def measured(arguments, ways, tokens):
    """By way of sampling: the acceptance rate, or None, and the followers."""
    server, found = Lab(*arguments), {}
    try:
        await server.start()
        for way, sampling in ways.items():
            before = await counters(server.url)
            sample = await followers(server.url, sampling, tokens)
            _, drafted, accepted = (
                now - then for now, then in zip(await counters(server.url), before, strict=True)
            )
            found[way] = accepted / drafted if drafted else None, sample
    finally:
        server.kill()
    return found


def print_row(drafting, way, rate, sample, plain):
    square, freedom, p = chi_square(sample, plain)
    tokens = sum(followed.total() for followed in sample.values())
    shown = "" if rate is None else f"{rate:.3f}"
    chance = f"{p:.3f}" if p >= 0.001 else "< 0.001"
    print(
        f"| {drafting} | {way} | {tokens:,} | {shown} | {square:,.0f} | {freedom:,} | {chance} |",
        flush=True,
    )


async def main(tokens, servers=SERVERS, ways=WAYS):
    again = {f"{way}, again": WAYS[way] for way in CHECKED if way in ways}
    hotter = {f"{way}, at 1.1": {**WAYS[way], "temperature": 1.1} for way in CHECKED if way in ways}
    plain = await measured(["off"], ways | again | hotter, tokens)
    print(
        "| drafts | sampling | tokens | acceptance | chi-square | degrees of freedom | p |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|")
    for way in (*again, *hotter):
        print_row("off", way, *plain[way], plain[way.rsplit(", ", 1)[0]][1])
    for drafting, arguments in servers.items():
        for way, (rate, sample) in (await measured(arguments, ways, tokens)).items():
            print_row(drafting, way, rate, sample, plain[way][1])


if __name__ == "__main__":
    tokens, *one = sys.argv[1:]
    chosen = ({one[0]: SERVERS[one[0]]}, {one[1]: WAYS[one[1]]}) if one else ()
    asyncio.run(main(int(tokens), *chosen))
