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

from specdec_tools.outputs.homogeneity import homogeneity, total
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
    """Two samples of what follows each token, compared."""
    return total(homogeneity(one[token], other[token]) for token in one.keys() & other.keys())


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
    found = chi_square(sample, plain)
    tokens = sum(followed.total() for followed in sample.values())
    shown = "" if rate is None else f"{rate:.3f}"
    chance = f"{found.p:.3f}" if found.p >= 0.001 else "< 0.001"
    numbers = f"{found.square:,.0f} | {found.freedom:,} | {chance}"
    print(f"| {drafting} | {way} | {tokens:,} | {shown} | {numbers} |", flush=True)


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
