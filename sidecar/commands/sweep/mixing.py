"""The mixed-workload check: do requests of one temperature suffer from concurrent requests of another?"""

from collections.abc import Sequence

from sidecar.commands.estimates import Interval, quantile_interval, relative_change, weighted_quantile
from sidecar.commands.sweep.results import LevelResult, MixedTemperature, MixResult
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.summary import CONFIDENCE, cut, quantiles, tpots
from sidecar.commands.sweep.workload import Workload


def mix_results(levels: Sequence[LevelResult]) -> tuple[MixResult, ...]:
    """Each mix at each load at which its temperatures were also measured alone."""
    measured = {one.level: one for one in levels if one.samples}
    found = []
    for level in measured.values():
        weights = level.level.workload.weights
        alone = [measured.get(type(level.level)(Workload(((one, 1.0),)), level.level.load)) for one, _ in weights]
        known = [one for one in alone if one is not None]
        if len(weights) > 1 and len(known) == len(weights):
            found.append(_checked(level, known))
    return tuple(found)


def _checked(mixed: LevelResult, alone: Sequence[LevelResult]) -> MixResult:
    found = tuple(_temperature(mixed, one) for one in alone)
    weighted = [
        (tpot, weight / len(values))
        for part, (_, weight) in zip(alone, mixed.level.workload.weights, strict=True)
        for values in [tpots(part.samples)]
        for tpot in values
    ]
    return MixResult(
        level=mixed.level,
        tpot_p99=mixed.speed.tpot.p99,
        tpot_p99_unmixed=weighted_quantile(weighted, 0.99),
        temperatures=found,
        conclusion=_conclusion(found),
    )


def _temperature(mixed: LevelResult, alone: LevelResult) -> MixedTemperature:
    temperature = alone.level.workload.temperature or 0.0
    inside = [one for one in mixed.samples if one.temperature == temperature]
    return MixedTemperature(
        temperature=temperature,
        ttft_alone=alone.speed.ttft,
        ttft_in_mix=quantiles([one.ttft for one in inside]),
        tpot_alone=alone.speed.tpot,
        tpot_in_mix=quantiles([one.tpot for one in inside]),
        change=relative_change(_p99(alone.samples, alone), _p99(inside, mixed)),
    )


def _p99(samples: Sequence[Sample], one: LevelResult) -> Interval | None:
    return quantile_interval(tpots(samples), 0.99, cut(samples, one.level.load), CONFIDENCE)


def _conclusion(found: Sequence[MixedTemperature]) -> str:
    bounds = {one.temperature: None if one.change is None else one.change.low for one in found}
    slower = [f"{temperature:g}" for temperature, low in bounds.items() if low is not None and low > 0]
    if slower:
        named = " and ".join(slower)
        return f"requests at temperature {named} are slower in the mix: route them to separate pods"
    if None in bounds.values():
        return "too few requests to compare P99: raise --requests (about 500 of each temperature)"
    return "no temperature is shown to be slower in the mix: separate pods would not help"
