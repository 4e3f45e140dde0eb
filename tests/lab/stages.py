"""Stages causes of losses on a real vLLM: ``python -m tests.lab.stages [STAGE ...]``.

It needs ``make lab`` to have run.

For each it prints a row of the table in docs/measurements/why.md. It ends with 1 if one shows
another finding than the cause it stages, or a second one.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from lab.installation import installed
from sidecar.analysis.split.group_watch import SPANS
from tests.demo.http_traffic import WORDS, each_sent, exchange
from tests.lab.conftest import Lab, idle, page_until, sidecar

REQUESTS, CLIENTS = 300, 6
COMPARED = {"long_prompts", "one_engine", "sampling"}
COLD_AND_HOT = [{"temperature": temperature} for temperature in (0, 0.6, 1.0)]
FILTERS = {"top_k": 20, "top_p": 0.8}
PROBABILISTIC = {"draft_sample_method": "probabilistic"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 60}},
    "required": ["a"],
}
_CHANGED = """
import shutil, sys, torch
from safetensors.torch import load_file, save_file
source, folder, noise, factor = *sys.argv[1:3], float(sys.argv[3]), float(sys.argv[4])
shutil.copytree(source, folder)
weights = load_file(f"{folder}/model.safetensors")
head = weights["lm_head.weight"]
torch.manual_seed(3)
change = noise * head.float().std() * torch.randn(head.shape)
weights["lm_head.weight"] = (factor * (head + change)).to(head.dtype)
save_file(weights, f"{folder}/model.safetensors", {"format": "pt"})
"""


@dataclass(frozen=True)
class Stage:
    """What is served, what is sent in turn, and the one finding that it must show."""

    finding: str | None
    method: str
    bodies: list
    speculative: dict = field(default_factory=dict)
    options: tuple = ()
    noise: float | None = None  # on the draft's output weights, as a share of their spread
    long: int = 0  # words of every second prompt

    @property
    def seconds(self):
        """For how long its requests are sent: groups of them are compared over 15 minutes."""
        return SPANS[0] + 60 if self.finding in COMPARED else 0


def custom(finding, proposer, options=(), **more):
    hot = [{"temperature": 0.6}, {"temperature": 0.6}]
    return Stage(
        finding, "custom", hot, options=("--proposer", f"lab_proposer.{proposer}", *options), **more
    )


STAGES = {
    "greedy drafting": Stage("greedy_drafting", "draft_model", COLD_AND_HOT),
    "sampled drafting": Stage(None, "draft_model", COLD_AND_HOT, PROBABILISTIC),
    "greedy drafting, eagle3": Stage("greedy_drafting", "eagle3", COLD_AND_HOT),
    "sampled drafting, eagle3": Stage(None, "eagle3", COLD_AND_HOT, PROBABILISTIC),
    "greedy drafting, weak draft": Stage("greedy_drafting", "draft_model", COLD_AND_HOT, noise=0.4),
    "sampled drafting, weak draft": Stage(
        "too_many_tokens", "draft_model", COLD_AND_HOT, PROBABILISTIC, noise=0.4
    ),
    "greedy drafting, filters": Stage(
        None, "draft_model", [{"temperature": 0}, *(b | FILTERS for b in COLD_AND_HOT[1:])]
    ),
    "a draft of random weights": Stage("mismatch", "draft_model", COLD_AND_HOT, noise=30.0),
    "a draft's longest length": Stage(
        "mismatch", "draft_model", COLD_AND_HOT, {"max_model_len": 256}, long=250
    ),
    "structured output": Stage(
        "structured_output",
        "draft_model",
        [
            {"temperature": 0.6},
            {"temperature": 0.6, "structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
        ],
    ),
    "penalties": Stage(
        "sampling",
        "draft_model",
        [{"temperature": 0.8}, {"temperature": 0.8, "presence_penalty": 2, "frequency_penalty": 2}],
        PROBABILISTIC,
    ),
    "long prompts": custom("long_prompts", "WeakOnLongPrompts", long=250),
    "one engine": custom("one_engine", "WeakOnOneEngine", ("--data-parallel-size", "2")),
    "n-gram": Stage(None, "ngram", COLD_AND_HOT),
}


def changed_model(model, folder, *, noise=0.0, factor=1.0):
    """A copy of one of the lab's models in ``folder`` with other output weights.

    ``noise`` is a standard deviation as a share of the weights' own. With a ``factor`` above 1 the
    likeliest token is even likelier.
    """
    source = installed().model(model)
    copy = folder / model
    numbers = map(str, (noise, factor))
    command = [installed().venv / "bin/python", "-c", _CHANGED, source, copy, *numbers]
    subprocess.run(command, check=True)
    return copy


def arguments(stage, folder):
    """Those of lab/serve."""
    models, speculative = installed().model(""), dict(stage.speculative)
    if stage.noise is not None:
        speculative["model"] = str(changed_model("draft", folder, noise=stage.noise))
    options = [option.format(models=models) for option in stage.options]
    return [stage.method, "--speculative", json.dumps(speculative), *options]


async def send(url, stage):
    """Every body in turn, with a random prompt.

    With ``long`` ones, both lengths have every body.
    """
    rng = random.Random(0)

    async def one(http, number):
        is_long = stage.long and (number // len(stage.bodies)) % 2
        prompt = " ".join(rng.choices(WORDS, k=stage.long if is_long else rng.randrange(10, 40)))
        body = {
            "model": "lab",
            "prompt": prompt,
            "max_tokens": rng.randrange(30, 90),
            "ignore_eos": True,
        }
        await exchange(
            http, f"{url}/v1/completions", body | stage.bodies[number % len(stage.bodies)]
        )

    await each_sent(range(REQUESTS), one, CLIENTS)
    await idle(url)


async def send_all(url, stage):
    """Sends as often as the stage needs; returns the number of requests."""
    begun = time.monotonic()
    sent = 0
    while not sent or time.monotonic() - begun < stage.seconds:
        await send(url, stage)
        sent += REQUESTS
    return sent


async def staged(name, stage):
    """Runs one and prints its row.

    Returns whether it shows the finding that it must, and no other.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vllm = Lab(*arguments(stage, folder), folder=folder)
        try:
            await vllm.start()
            async with sidecar(vllm, thresholds__min_requests="20") as ours:
                sent = await send_all(vllm.url, stage)
                await page_until(
                    ours, lambda page: page.sum("specdec_request_duration_seconds_count") == sent
                )
                (model,) = (await ours.status())["models"]
        finally:
            vllm.kill()
    found = [explanation["code"] for explanation in model["explanations"]]
    rates = [
        f"{part['temperature']}: {part['window']['rate']:.2f}"
        for part in model["temperatures"]
        if part["window"]["rate"]
    ]
    what = model["explanations"][0]["what"] if found else ""
    print(f"| {name} | {', '.join(rates)} | {', '.join(found) or 'none'} | {what} |", flush=True)
    return found == [stage.finding] * (stage.finding is not None)


async def main(names):
    print(
        "| stage | acceptance by temperature | findings | as shown |\n|---|---|---|---|", flush=True
    )
    results = {name: await staged(name, STAGES[name]) for name in names or STAGES}
    return [name for name, is_right in results.items() if not is_right]


if __name__ == "__main__":
    if wrong := asyncio.run(main(sys.argv[1:])):
        sys.exit(f"other findings than staged: {', '.join(wrong)}")
