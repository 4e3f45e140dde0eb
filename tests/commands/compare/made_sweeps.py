"""Generated sweeps with the noise of real servers."""

from random import Random

from sidecar.commands.sweep.client import Sample
from sidecar.commands.sweep.measured import LevelResult, SweepResult
from sidecar.commands.sweep.workload import Level, Load, alone
from tests.commands.sweep.sweep_tools import measured


def level(seed, *, temperature=0.0, at_once=4, requests=200, tpot=0.010, acceptance=0.6, k=3, drift=0.0):
    """Requests whose times scatter by a tenth, in runs that share a level of their own."""
    random = Random(seed)
    samples, shared = [], 1.0
    for number in range(requests):
        if number % at_once == 0:
            shared = random.gauss(1 + drift, 0.03)
        drafts = random.randint(20, 40)
        accepted = sum(random.random() < acceptance for _ in range(drafts * k))
        time = tpot * shared * random.uniform(0.9, 1.1)
        samples.append(
            Sample(
                temperature=temperature,
                ttft=0.05 * shared * random.uniform(0.8, 1.2),
                tpot=time,
                duration=100 * time,
                tokens=100,
                drafts=drafts if k else None,
                draft_tokens=drafts * k,
                accepted_tokens=accepted,
                histogram=(0,) * k + (drafts,) if k else (),
            )
        )
    seconds = sum(one.duration for one in samples) / at_once
    return LevelResult(
        level=Level(alone(temperature), Load(at_once=at_once)), speculating=measured(samples, seconds=seconds)
    )


def swept(*levels, rounds=8):
    return SweepResult(model="m", max_tokens=100, rounds=rounds, complete=True, faults={}, levels=levels)
