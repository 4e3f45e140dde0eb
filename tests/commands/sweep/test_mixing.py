from random import Random

from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.mixing import mix_results
from sidecar.commands.sweep.render import text
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.summary import level_result
from sidecar.commands.sweep.workload import Level, Load, Workload
from sidecar.settings.groups import Thresholds
from tests.commands.sweep.sweep_tools import simulated, swept

MIX = ((0.1, 50.0), (1.0, 50.0))


def level(weights, cold=0.010, hot=0.030, requests=2000, seed=1):
    """Requests whose TPOT scatters by a tenth, one in flight."""
    random = Random(seed)
    samples = tuple(
        Sample(temperature=temperature, ttft=0.1, tpot=base * random.uniform(1, 1.1), duration=1.0, tokens=10)
        for temperature in Workload(weights).spread(requests)
        for base in [cold if temperature == 0.1 else hot]
    )
    measured = Measured(
        level=Level(Workload(weights), Load(at_once=1)),
        samples=samples,
        failed=0,
        seconds=1.0,
        counted=None,
        others=False,
        complete=True,
    )
    return level_result(measured, None, Thresholds())


def alone(**values):
    return [level(((temperature, 1.0),), seed=2, **values) for temperature in (0.1, 1.0)]


def test_a_temperature_that_is_slower_in_the_mix_is_named():
    (check,) = mix_results([*alone(), level(MIX, cold=0.015)])
    assert check.conclusion == "requests at temperature 0.1 are slower in the mix: route them to separate pods"
    cold, hot = check.temperatures
    assert 0.45 < cold.change.low < cold.change.value < cold.change.high < 0.55
    assert abs(hot.change.value) < 0.02


def test_a_tail_that_is_the_hot_requests_own_is_not_blamed_on_mixing():
    """The mix's P99 is three times that of the cold ones alone, and yet no request is slower for it."""
    (check,) = mix_results([*alone(), level(MIX)])
    assert check.conclusion == "no temperature is shown to be slower in the mix: separate pods would not help"
    assert 0.98 < check.tpot_p99 / check.tpot_p99_unmixed < 1.02


def test_nothing_is_claimed_from_few_requests():
    (check,) = mix_results([*alone(requests=60), level(MIX, cold=0.015, requests=60)])
    assert check.conclusion.startswith("too few requests to compare P99")


def test_without_each_temperature_alone_there_is_nothing_to_compare():
    assert mix_results([alone()[0], level(MIX)]) == ()


async def test_a_mix_is_measured_beside_its_temperatures():
    async with simulated() as vllm:
        result = await swept(vllm.url, temperatures=(), mixes=({0.0: 3, 1.0: 1},))
    assert [str(one.level.workload) for one in result.levels] == ["0", "1", "0:3,1:1"]
    (check,) = result.mixes
    mixed = result.levels[-1]
    assert [one.temperature for one in mixed.samples].count(0.0) == 18
    assert check.tpot_p99 == mixed.speed.tpot.p99 > 0
    assert "mix 0:3,1:1 at 4 at once: TPOT P99 " in "\n".join(text(result))
