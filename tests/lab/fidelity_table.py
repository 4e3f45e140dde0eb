"""What ``fidelity`` says of a real vLLM: ``python -m tests.lab.fidelity_table FILE [CASE ...]``.

It needs ``make lab`` to have run.

For each case it serves a model, compares its outputs with the reference's as the command does, and
prints a row of the table in docs/measurements/fidelity.md. It ends with 1 if a case fails or its
verdict is another one than it must be; a case whose verdict is None only measures.

A reference is asked once: its outputs are kept in FILE, so that one server runs at a time, and the
cases can be run one by one. Of what is tested, fewer outputs are sampled.
"""

import asyncio
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from pathlib import Path
from string import ascii_lowercase

from sidecar.errors import MeasurementError
from specdec_tools.commands.fidelity import Fidelity, Required, Server
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import BUILT_IN, RequestOptions
from specdec_tools.outputs import result
from specdec_tools.outputs.greedy import compare_greedy, control_of
from specdec_tools.outputs.replies import greedy_replies, sampled_replies
from specdec_tools.outputs.sampled import compare_sampled
from tests.lab.conftest import Lab
from tests.lab.stages import changed_model
from tests.lab.vllm_plugins import SYNTHETIC_ACCEPTANCE, install

DRAFT_TOKENS = 3  # this and what follows are the command's defaults
CONCURRENCY = 16

SAME = "no_difference_found"
DIFFERENT = "different"
SAMPLED_DRAFTS = {"draft_sample_method": "probabilistic"}
SYNTHETIC = {
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.9, 0.8, 0.7],
}
# The lab's models look at the last token alone: each prompt ends in another one.
GREEDY = tuple(
    f"{prompt} {letter}" for prompt, letter in zip(BUILT_IN, ascii_lowercase, strict=False)
)
GREEDY_TOKENS = 64
# Their next token is nearly certain, so that most samples share their beginnings.
CERTAIN = ("Repeat: drive", "Repeat:verifies", "Repeat:speculative", "Repeat: token")
STRUCTURED = {"structured_outputs": {"regex": "[a-z ]+"}}
NOISES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
# A case that fails leaves the others to run: vLLM ends or answers no request, or no copy of a model
# can be made.
FAILURES = (MeasurementError, AssertionError, subprocess.CalledProcessError)
MTP = ("off", "--target", "target-mtp")


@dataclass(frozen=True)
class Asked:
    """What both servers are asked."""

    greedy: tuple[str, ...] = GREEDY
    sampled: tuple[str, ...] = CERTAIN
    samples: int = 500
    extra_body: Mapping = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """The server that is tested, and the verdict that it must give."""

    verdict: str | None
    method: str
    speculative: Mapping = field(default_factory=dict)
    reference: tuple[str, ...] = ("off",)
    noise: float | None = None  # on the target's output weights, as a share of their spread
    environment: Mapping = field(default_factory=dict)
    plugin: Path | None = None  # a module that vLLM loads by its function `register`
    asked: Asked = field(default_factory=Asked)
    samples: int = 300  # of each prompt, by the server that is tested
    difference: float = 0.17  # what so few can show at any one position, beside the control
    times: int = 1

    @property
    def required(self):
        return Required(self.difference)


@dataclass(frozen=True)
class Outputs:
    """Those of one server; ``alone``: greedy, one request at a time.

    ``control``: sampled with a quarter of the requests in flight.
    """

    greedy: list
    sampled: list
    alone: list = field(default_factory=list)
    control: list | None = None


def structured(verdict, samples):
    """Sampled drafts with structured output, which vLLM 0.32 biases slightly."""
    asked = Asked((), CERTAIN[:1], samples, STRUCTURED)
    return Case(verdict, "draft_model", SAMPLED_DRAFTS, asked=asked, samples=samples)


CASES = {
    "plain": Case(SAME, "off", samples=60, difference=0.34, times=10),
    "draft_model": Case(SAME, "draft_model"),
    "draft_model, sampled drafts": Case(SAME, "draft_model", SAMPLED_DRAFTS),
    "eagle3": Case(SAME, "eagle3"),
    "eagle3, sampled drafts": Case(SAME, "eagle3", SAMPLED_DRAFTS),
    "ngram": Case(SAME, "ngram"),
    "mtp": Case(SAME, "mtp", reference=MTP),
    "mtp, sampled drafts": Case(SAME, "mtp", SAMPLED_DRAFTS, reference=MTP),
    "synthetic acceptance": Case(
        DIFFERENT,
        "draft_model",
        SYNTHETIC,
        plugin=SYNTHETIC_ACCEPTANCE,
    ),
    "CPU build with its own sampler": Case(
        DIFFERENT, "draft_model", environment={"VLLM_PLUGINS": "none"}
    ),
    "structured, sampled drafts, 500": structured(None, 500),
    "structured, sampled drafts, 1,500": structured(DIFFERENT, 1500),
    **{f"noise of {noise:.1%}": Case(None, "off", noise=noise) for noise in NOISES},
}


def tested_server(case, folder):
    arguments = [case.method]
    if case.speculative:
        arguments += ["--speculative", dumps(case.speculative)]
    if case.noise is not None:
        arguments += ["--target", str(changed_model("target", folder, noise=case.noise))]
    environment = dict(case.environment)
    if case.plugin is not None:
        environment |= install(case.plugin, folder / "plugin")
    return Lab(*arguments, environment=environment)


async def outputs(server, asked, samples, *, is_reference=False):
    options = RequestOptions(
        prompts=(*asked.greedy, *asked.sampled), endpoint="completions", extra_body=asked.extra_body
    )
    async with Client(server.url, options) as client:
        await client.connect(asked.sampled[0])
        greedy = await greedy_replies(
            client, asked.greedy, GREEDY_TOKENS, CONCURRENCY, with_likely=is_reference
        )
        sample = partial(
            sampled_replies,
            client,
            asked.sampled,
            {"temperature": 1.0},
            samples=samples,
            max_tokens=DRAFT_TOKENS + 2,
        )
        sampled = await sample(concurrency=CONCURRENCY)
        if not is_reference:
            return Outputs(greedy, sampled)

        alone = await greedy_replies(client, asked.greedy, GREEDY_TOKENS, 1, with_likely=True)
        control = await sample(concurrency=CONCURRENCY // 4)
    return Outputs(greedy, sampled, alone, control)


def compared(case, tested, reference):
    greedy = None
    control = None
    if case.asked.greedy:
        greedy = compare_greedy(tested.greedy, reference.greedy)
        control = control_of(reference.alone, reference.greedy)
    sampled = compare_sampled(tested.sampled, reference.sampled, reference.control)
    return Fidelity(
        tested=Server("tested", case.method),
        reference=Server("reference", " ".join(case.reference)),
        greedy=greedy,
        control=control,
        sampled=sampled,
        asked=result.Asked(
            prompts=len(case.asked.greedy) + len(case.asked.sampled),
            contexts=None,
            max_tokens=GREEDY_TOKENS,
            sampled_tokens=DRAFT_TOKENS + 2,
            temperature=1.0,
            extra_body=case.asked.extra_body,
        ),
    )


def greedy_column(compared_greedy):
    """How many prompts are the same, and by how much the others differ at most, in nat."""
    if compared_greedy is None:
        return ""
    differing = (*compared_greedy.partings, *compared_greedy.ties)
    same = compared_greedy.prompts - len(differing) - len(compared_greedy.unclear)
    gaps = [parting.gap for parting in differing if parting.gap is not None]
    largest = f", up to {max(gaps):.2f} nat" if gaps else ""
    return f"{same} of {compared_greedy.prompts}{largest}"


def control_column(control):
    return "" if control is None else greedy_column(control.outputs)


def row(name, case, fidelity, seconds):
    sampled = fidelity.sampled
    samples = f"{len(case.asked.sampled)} x {case.samples:,} and {case.asked.samples:,}"
    chance = "< 0.001" if sampled.p < 0.001 else f"{sampled.p:.3f}"
    columns = (
        *(name, greedy_column(fidelity.greedy), control_column(fidelity.control)),
        *(samples, chance, len(sampled.places)),
        *(points(sampled.noticeable), points(sampled.noticeable_anywhere)),
        *(fidelity.verdict(case.required), f"{seconds:.0f}"),
    )
    return f"| {' | '.join(map(str, columns))} |"


def points(share):
    return "" if share is None else f"{100 * share:.1f}"


async def asked_once(cases, file):
    """The outputs of each case's reference, by its key; from ``file`` if it has them."""
    kept = pickle.loads(file.read_bytes()) if file.exists() else {}
    missing = {key_of(case): case for case in cases if key_of(case) not in kept}
    for served in {case.reference for case in missing.values()}:
        server = Lab(*served)
        try:
            await server.start()
            for key, case in missing.items():
                if case.reference == served:
                    asked = case.asked
                    kept[key] = await outputs(server, asked, asked.samples, is_reference=True)
                    file.write_bytes(pickle.dumps(kept))
        finally:
            server.kill()
    return kept


def key_of(case):
    return repr((case.reference, case.asked))


async def measure(name, case, reference):
    """Prints a row each time; returns the verdicts."""
    verdicts = set()
    with tempfile.TemporaryDirectory() as folder:
        server = tested_server(case, Path(folder))
        try:
            await server.start()
            for _ in range(case.times):
                begun = time.monotonic()
                tested = await outputs(server, case.asked, case.samples)
                fidelity = compared(case, tested, reference)
                verdicts.add(fidelity.verdict(case.required))
                print(row(name, case, fidelity, time.monotonic() - begun), flush=True)
        finally:
            server.kill()
    return verdicts


async def main(file, *names):
    """Returns the cases that fail, or have another verdict than they must have."""
    header = (
        *("case", "greedy: the same for", "reference alone: the same for", "samples"),
        *("p", "places", "noticeable everywhere, points", "at one position"),
        *("verdict", "seconds"),
    )
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)

    cases = {name: CASES[name] for name in names or CASES}
    references = await asked_once(cases.values(), Path(file))
    wrong = []
    for name, case in cases.items():
        try:
            verdicts = await measure(name, case, references[key_of(case)])
        except FAILURES as error:
            print(f"| {name} | failed: {error} |", flush=True)
            wrong.append(name)
            continue

        if case.verdict is not None and verdicts != {case.verdict}:
            wrong.append(name)
    return wrong


if __name__ == "__main__":
    if wrong := asyncio.run(main(*sys.argv[1:])):
        sys.exit(f"failed, or another verdict than it must be: {', '.join(wrong)}")
