"""Sweeps: measured on a server, small by default, or generated with the noise of real servers."""

import asyncio
from random import Random

from sidecar.commands.load.client import Sample
from sidecar.commands.load.measure import SweepOptions, measure_sweep
from sidecar.commands.load.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult
from sidecar.commands.load.workload import BUILT_IN, RequestOptions
from sidecar.commands.sweep import summarize, text
from sidecar.demo.scheduler import SimulatorOptions
from sidecar.settings import load_settings
from sidecar.settings.groups import Thresholds
from tests.demo.http_vllm import HttpVllm

LEVEL = SweepLevel(0.0, 4)


async def measured_sweep(
    url, prompts=BUILT_IN, stop=None, *, concurrency=4, temperatures=(0.0, 1.2), **options
):
    given = {"count": 24, "rounds": 1, "seconds": 1800.0, "max_tokens": 48} | options
    sending = {
        name: given.pop(name)
        for name in ("max_tokens", "api_key", "extra_body", "endpoint")
        if name in given
    }
    on_begin = given.pop("on_begin", lambda _ended, _level: None)
    asked = SweepOptions(
        url=url,
        requests=RequestOptions(prompts=prompts, **sending),
        levels=tuple(SweepLevel(temperature, concurrency) for temperature in temperatures),
        settings=load_settings(None, {"SPECDEC_SCRAPE_TIMEOUT": "60s"}),
        **given,
    )
    return await measure_sweep(asked, stop or asyncio.Event(), on_begin)


def summarized(result, **thresholds):
    return [summarize(level, Thresholds(**thresholds)) for level in result.levels]


def printed(result):
    return list(text(result, summarized(result), Thresholds()))


def simulated(**options):
    """A simulated vLLM, whose replies have the request's own acceptance."""
    return HttpVllm(SimulatorOptions(**{"speed": 8, **options}))


def measured(samples, seconds=2.0):
    return Measurement(samples=tuple(samples), failed=0, seconds=seconds, others=False)


def level_of(samples, level=LEVEL):
    """One round."""
    return LevelResult(level=level, rounds=(measured(samples),))


def generated_level(
    seed,
    *,
    temperature=0.0,
    concurrency=4,
    requests=200,
    rounds=8,
    tpot=0.010,
    ttft=0.05,
    acceptance=0.6,
    k=3,
):
    """Requests whose times scatter by a tenth, in runs that share a level of their own."""
    random = Random(seed)
    samples, shared, size = [], 1.0, requests // rounds
    for number in range(requests):
        if number % concurrency == 0:
            shared = random.gauss(1, 0.03)
        drafts = random.randint(20, 40)
        accepted = sum(random.random() < acceptance for _ in range(drafts * k))
        time = tpot * shared * random.uniform(0.9, 1.1)
        samples.append(
            Sample(
                temperature=temperature,
                ttft=ttft * shared * random.uniform(0.8, 1.2),
                tpot=time,
                tokens=100,
                drafts=drafts if k else None,
                draft_tokens=drafts * k,
                accepted_tokens=accepted,
                histogram=(0,) * k + (drafts,) if k else (),
            )
        )
    parts = [samples[place * size : (place + 1) * size] for place in range(rounds)]
    times = [sum(100 * sample.tpot for sample in part) / concurrency for part in parts]
    measurements = tuple(
        measured(part, seconds) for part, seconds in zip(parts, times, strict=True)
    )
    return LevelResult(level=SweepLevel(temperature, concurrency), rounds=measurements)


def sweep_of(*levels):
    sent = {
        "prompts": 64 * "a",
        "requests": 25,
        "endpoint": "chat",
        "extra_body": "{}",
        "max_tokens": 100,
    }
    rounds = len(levels[0].rounds)
    return SweepResult(model="m", **sent, rounds=rounds, complete=True, fault=None, levels=levels)
