"""What ``fidelity`` says of a real vLLM: ``python -m tests.lab.fidelity_table [CASE ...]``.

It needs ``make lab`` to have run.

For each case it serves two models, compares them as the command does, and prints a row of the table
in docs/measurements/fidelity.md. It ends with 1 if a verdict is another one than it must be; a case
whose verdict is None only measures.
"""

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase

from sidecar.commands.fidelity import FidelityOptions, compare_servers
from sidecar.commands.load.workload import BUILT_IN, RequestOptions
from sidecar.commands.outputs.greedy import NEAR_TIE
from tests.lab.conftest import Lab
from tests.lab.stages import changed_model

DIFFERENCE = 0.05  # the command's default
SAME = "no_difference_found"
DIFFERENT = "different"
SAMPLED_DRAFTS = {"draft_sample_method": "probabilistic"}
SYNTHETIC = {
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.9, 0.8, 0.7],
}
# The lab's models look at the last token alone: each prompt ends in another one.
PROMPTS = tuple(
    f"{prompt} {letter}" for prompt, letter in zip(BUILT_IN, ascii_lowercase, strict=False)
)
CERTAIN = ("drive",)  # what the lab's target says next is nearly certain
NOISES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Case:
    """The server that is tested, what is asked of both, and the verdict that it must give."""

    verdict: str | None
    method: str
    speculative: dict = field(default_factory=dict)
    reference: tuple = ("off",)
    noise: float | None = None  # on the target's output weights, as a share of their spread
    environment: dict = field(default_factory=dict)
    mode: str = "both"
    prompts: tuple = PROMPTS
    samples: int = 200
    extra_body: dict = field(default_factory=dict)
    times: int = 1


def structured(verdict, samples, prompts):
    """Sampled drafts with structured output, which vLLM 0.32 biases slightly."""
    return Case(
        verdict,
        "draft_model",
        SAMPLED_DRAFTS,
        mode="sampled",
        prompts=prompts,
        samples=samples,
        extra_body={"structured_outputs": {"regex": "[a-z ]+"}},
    )


CASES = {
    "plain, ten times": Case(SAME, "off", times=10),
    "draft_model": Case(SAME, "draft_model"),
    "draft_model, sampled drafts": Case(SAME, "draft_model", SAMPLED_DRAFTS),
    "eagle3": Case(SAME, "eagle3"),
    "eagle3, sampled drafts": Case(SAME, "eagle3", SAMPLED_DRAFTS),
    "ngram": Case(SAME, "ngram"),
    "mtp": Case(SAME, "mtp", reference=("off", "--target", "target-mtp")),
    "synthetic acceptance": Case(DIFFERENT, "draft_model", SYNTHETIC),
    "unmended CPU build": Case(
        DIFFERENT, "draft_model", environment={"VLLM_PLUGINS": "none"}, mode="sampled"
    ),
    "structured, sampled drafts, 20 prompts": structured(None, 200, PROMPTS),
    "structured, sampled drafts, 500": structured(None, 500, CERTAIN),
    "structured, sampled drafts, 1,000": structured(None, 1000, CERTAIN),
    "structured, sampled drafts, 2,000": structured(DIFFERENT, 2000, CERTAIN),
    **{f"noise of {noise:.0%}": Case(None, "off", noise=noise) for noise in NOISES},
}


def served(case, folder):
    """The server that is tested, and the reference."""
    arguments = [case.method]
    if case.speculative:
        arguments += ["--speculative", json.dumps(case.speculative)]
    if case.noise is not None:
        arguments += ["--target", str(changed_model("target", folder, noise=case.noise))]
    return Lab(*arguments, environment=case.environment), Lab(*case.reference)


async def compared(case, tested, reference):
    requests = RequestOptions(
        prompts=case.prompts,
        endpoint="completions",
        max_tokens=128,
        extra_body=case.extra_body,
    )
    options = FidelityOptions(
        tested=tested.url,
        reference=reference.url,
        requests=requests,
        mode=case.mode,
        temperature=1.0,
        samples=case.samples,
        draft_tokens=3,
        near_tie=NEAR_TIE,
        concurrency=16,
    )
    return await compare_servers(options)


def greedy_column(fidelity):
    """How many prompts are the same, and by how much the near ties differ, in nat."""
    if fidelity.greedy is None:
        return "", ""
    columns = []
    for one in (fidelity.greedy, fidelity.control):
        same = one.prompts - len(one.partings) - len(one.ties) - len(one.unclear)
        gaps = [parting.gap or 0.0 for parting in (*one.ties, *one.partings)]
        largest = f", up to {max(gaps):.2f} nat" if gaps else ""
        columns.append(f"{same} of {one.prompts}{largest}")
    return columns


def row(name, case, fidelity, seconds):
    sampled = fidelity.sampled
    greedy, control = greedy_column(fidelity)
    chance = "< 0.001" if sampled.p < 0.001 else f"{sampled.p:.3f}"
    noticeable = "" if sampled.noticeable is None else f"{100 * sampled.noticeable:.1f}"
    places = len(sampled.places)
    samples = f"{len(case.prompts)} x {sampled.samples:,}"
    verdict = fidelity.verdict(DIFFERENCE)
    columns = (
        name,
        greedy,
        control,
        samples,
        chance,
        places,
        noticeable,
        verdict,
        f"{seconds:.0f}",
    )
    return f"| {' | '.join(map(str, columns))} |"


async def measure(name, case, tested, reference):
    """Prints a row each time; returns the verdicts."""
    verdicts = []
    for _ in range(case.times):
        begun = time.monotonic()
        fidelity = await compared(case, tested, reference)
        verdicts.append(fidelity.verdict(DIFFERENCE))
        print(row(name, case, fidelity, time.monotonic() - begun), flush=True)
    return verdicts


async def main(names):
    """Returns the cases that have another verdict than they must have."""
    header = (
        *("case", "greedy: the same for", "reference alone: the same for", "samples"),
        *("p", "places", "noticeable, points", "verdict", "seconds"),
    )
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)

    wrong = []
    references = {}
    try:
        for name in names or CASES:
            case = CASES[name]
            with tempfile.TemporaryDirectory() as folder:
                tested, reference = served(case, Path(folder))
                reference = references.setdefault(case.reference, reference)
                try:
                    await asyncio.gather(tested.start(), reference.start())
                    verdicts = await measure(name, case, tested, reference)
                finally:
                    tested.kill()
            if case.verdict is not None and {*verdicts} != {case.verdict}:
                wrong.append(name)
    finally:
        for reference in references.values():
            reference.kill()
    return wrong


if __name__ == "__main__":
    if wrong := asyncio.run(main(sys.argv[1:])):
        sys.exit(f"other verdicts than they must have: {', '.join(wrong)}")
