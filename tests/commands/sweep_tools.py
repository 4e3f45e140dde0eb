"""Sweeps: measured on a server, small by default, or generated with the noise of real servers."""

import asyncio
from dataclasses import replace
from itertools import accumulate
from math import exp
from random import Random

from sidecar.settings import load_settings
from sidecar.settings.groups import Thresholds
from specdec_tools.commands.sweep import summarize, text
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.measure import SweepOptions, measure_sweep
from specdec_tools.measuring.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult
from specdec_tools.measuring.workload import BUILT_IN, RequestOptions
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
    levels = tuple(SweepLevel(temperature, concurrency) for temperature in temperatures)
    levels = given.pop("levels", levels)
    asked = SweepOptions(
        url=url,
        requests=RequestOptions(prompts=prompts, **sending),
        levels=levels,
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
    slowdowns=None,
):
    """Requests whose times scatter by a tenth, in runs that share a level of their own.

    Each round sends the same prompts.
    ``slowdowns`` has a factor of the machine for each round.
    """
    random = Random(seed)
    samples, shared, size = [], 1.0, requests // rounds
    slowdowns = slowdowns or [1.0] * rounds
    for number in range(requests):
        machine = slowdowns[min(number // size, rounds - 1)]
        if number % concurrency == 0:
            shared = random.gauss(1, 0.03)
        drafts = random.randint(20, 40)
        accepted = sum(random.random() < acceptance for _ in range(drafts * k))
        time = tpot * machine * shared * random.uniform(0.9, 1.1)
        samples.append(
            Sample(
                temperature=temperature,
                ttft=ttft * machine * shared * random.uniform(0.8, 1.2),
                tpot=time,
                tokens=100,
                drafts=drafts if k else None,
                draft_tokens=drafts * k,
                accepted_tokens=accepted,
                histogram=(0,) * k + (drafts,) if k else (),
                prompt=number % size,
            )
        )
    parts = [samples[place * size : (place + 1) * size] for place in range(rounds)]
    times = [sum(100 * sample.tpot for sample in part) / concurrency for part in parts]
    measurements = tuple(
        measured(part, seconds) for part, seconds in zip(parts, times, strict=True)
    )
    return LevelResult(level=SweepLevel(temperature, concurrency), rounds=measurements)


def drifting(seed, rounds):
    """How slow a machine is in each round: it wanders by 3 % from one to the next."""
    random = Random(seed)
    return [exp(place) for place in accumulate(random.gauss(0, 0.03) for _ in range(rounds))]


def generated_pair(seed, *, slower=1.0, in_turns=True, rounds=8, requests=64):
    """Two sweeps of one level on a machine that drifts, the second of a slower server.

    In turns they share the drift; one after the other, each has its own.
    """
    same = {"rounds": rounds, "requests": requests, "k": 1}
    first = drifting(3 * seed, rounds)
    second = first if in_turns else drifting(3 * seed + 1, rounds)
    slowed = {"tpot": 0.010 * slower, "ttft": 0.05 * slower}
    levels = (
        generated_level(3 * seed, slowdowns=first, **same),
        generated_level(3 * seed + 1, slowdowns=second, **same, **slowed),
    )
    turns = "turns" if in_turns else None
    return [replace(sweep_of(level), turns=turns, one_machine=in_turns) for level in levels]


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
