"""The mixed-workload check: do requests of one temperature suffer from concurrent requests of another?"""

from collections.abc import Sequence

from sidecar.commands.estimates import Interval, quantile_interval, relative_change, weighted_quantile
from sidecar.commands.sweep.results import LevelSummary, MixCheck, MixedTemperature
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.summary import CONFIDENCE, cut, quantiles, tpots


def mix_checks(levels: Sequence[LevelSummary]) -> tuple[MixCheck, ...]:
    """Each mix at each load at which its temperatures were also measured alone."""
    alone = {(level.temperature, level.at_once, level.rate): level for level in levels if level.mix is None}
    checks = []
    for level in levels:
        mix = level.mix or {}
        parts = [alone.get((float(temperature), level.at_once, level.rate)) for temperature in mix]
        known = [part for part in parts if part is not None and part.samples]
        if mix and len(known) == len(mix) and level.samples:
            checks.append(_check(level, mix, known))
    return tuple(checks)


def _check(level: LevelSummary, mix: dict[str, float], alone: Sequence[LevelSummary]) -> MixCheck:
    found = tuple(_temperature(level, part) for part in alone)
    weighted = [
        (tpot, weight / len(values))
        for part, weight in zip(alone, mix.values(), strict=True)
        for values in [tpots(part.samples)]
        for tpot in values
    ]
    return MixCheck(
        mix=mix,
        load=str(level.level.load),
        tpot_p99=level.speed.tpot.p99,
        tpot_p99_unmixed=weighted_quantile(weighted, 0.99),
        temperatures=found,
        conclusion=_conclusion(found),
    )


def _temperature(mixed: LevelSummary, alone: LevelSummary) -> MixedTemperature:
    inside = [one for one in mixed.samples if one.temperature == alone.temperature]
    change = relative_change(_p99(alone.samples, alone), _p99(inside, mixed))
    return MixedTemperature(
        temperature=alone.temperature or 0.0,
        ttft_alone=alone.speed.ttft,
        ttft_in_mix=quantiles([one.ttft for one in inside]),
        tpot_alone=alone.speed.tpot,
        tpot_in_mix=quantiles([one.tpot for one in inside]),
        change=None if change is None else change.value,
        change_low=None if change is None else change.low,
        change_high=None if change is None else change.high,
    )


def _p99(samples: Sequence[Sample], level: LevelSummary) -> Interval | None:
    return quantile_interval(tpots(samples), 0.99, cut(samples, level.level.load), CONFIDENCE)


def _conclusion(found: Sequence[MixedTemperature]) -> str:
    slower = [f"{one.temperature:g}" for one in found if one.change_low is not None and one.change_low > 0]
    if slower:
        named = " and ".join(slower)
        return f"requests at temperature {named} are slower in the mix: route them to separate pods"
    if any(one.change_low is None for one in found):
        return "too few requests to compare P99: raise --requests (about 500 of each temperature)"
    return "no temperature is shown to be slower in the mix: separate pods would not help"
