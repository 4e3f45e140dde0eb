"""By how much numerics change log-probabilities: ``python -m tests.lab.numerics_table``.

It needs ``make lab`` to have run.

``fidelity`` lets greedy outputs part where the reference preferred its token by at most 0.3 nat.
This measures what that limit has to cover: the same target decodes one token at a time with 16
requests at once, with one at a time, and verifies the tokens of a draft, which are other shapes of
its matrices. At each position up to the first difference, the gap between the two likeliest tokens
is compared with that of 16 at once; a row has the quantiles of by how much it is another one.

The lab's own models would always show 0, since their layers add nothing. So the target is a copy of
the largest with random weights in eight layers of bfloat16, and logits of up to about 18.
"""

import asyncio
import statistics
import subprocess
import tempfile
from pathlib import Path

from lab.installation import installed
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import RequestOptions
from specdec_tools.outputs.replies import greedy_replies
from tests.lab.conftest import Lab
from tests.lab.fidelity_table import CONCURRENCY, GREEDY, GREEDY_TOKENS

_RANDOM = """
import shutil, sys, torch
from safetensors.torch import load_file, save_file
source, folder = sys.argv[1:]
shutil.copytree(source, folder)
weights = load_file(f"{folder}/model.safetensors")
torch.manual_seed(7)
for name, weight in weights.items():
    if weight.dim() == 2:
        # The spread that keeps a unit vector's length; the logits' own is 6.
        spread = (6 if name == "lm_head.weight" else 1) / weight.shape[1] ** 0.5
        weights[name] = (spread * torch.randn(weight.shape)).to(weight.dtype)
save_file(weights, f"{folder}/model.safetensors", {"format": "pt"})
"""
COLUMNS = (
    *("decoded", "positions", "P50, nat", "P99, nat", "largest, nat"),
    *("prompts that part", "by a gap of at most, nat"),
)


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
    """Of the gap between the reference's two likeliest tokens, and those gaps where two part."""
    changes = []
    parted = []
    for reply, other in zip(tested, reference, strict=True):
        for place, likely in enumerate(other.likely):
            first, second = sorted(likely, key=likely.get, reverse=True)[:2]
            expected = gap(likely, first, second)
            found = gap(reply.likely[place], first, second)
            if found is not None:
                changes.append(abs(found - expected))
            if reply.tokens[place] != other.tokens[place]:
                parted.append(gap(likely, other.tokens[place], reply.tokens[place]))
                break  # what follows has another beginning
    return changes, parted


def row(name, tested, reference):
    changes, parted = differences(tested, reference)
    quantiles = statistics.quantiles(changes, n=100)
    numbers = (quantiles[49], quantiles[98], max(changes))
    largest = f"{max(parted):.3f}" if parted else ""
    found = (f"{number:.3f}" for number in numbers)
    return line(name, f"{len(changes):,}", *found, len(parted), largest)


def line(*columns):
    return f"| {' | '.join(map(str, columns))} |"


def random_target(folder):
    """The path of the target that is measured."""
    target = folder / "target"
    command = [installed().venv / "bin/python", "-c", _RANDOM]
    subprocess.run([*command, installed().model("target-large"), target], check=True)
    return target


async def main():
    print(f"{line(*COLUMNS)}\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        await measure(str(random_target(Path(folder))))


async def measure(target):
    plain = Lab("off", "--target", target)
    try:
        await plain.start()
        reference = await replies(plain.url, CONCURRENCY)
        again = await replies(plain.url, CONCURRENCY)
        print(row("16 at once, again", again, reference), flush=True)
        alone = await replies(plain.url, 1)
        print(row("one request at a time", alone, reference), flush=True)
    finally:
        plain.kill()

    # Greedy outputs of random weights soon repeat themselves, so that n-gram drafts are accepted.
    drafting = Lab("ngram", "--target", target)
    try:
        await drafting.start()
        for at_once in (1, CONCURRENCY):
            verified = await replies(drafting.url, at_once)
            print(row(f"verified, {at_once} at once", verified, reference), flush=True)
    finally:
        drafting.kill()


if __name__ == "__main__":
    asyncio.run(main())
