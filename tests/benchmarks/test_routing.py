"""The simulated servers of the benchmark on routing, with laws whose answers are plain."""

from dataclasses import replace

import pytest

from benchmarks.routing.fleet import Arrival, Mix, Pool, capacity, chance, serve
from benchmarks.routing.results import relative_change
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.step_law import LinearLaw

STEP = 0.01
PLAIN = SimulatorOptions(
    num_speculative_tokens=0,
    prefix_hits=0.0,
    max_num_seqs=4,
    law=LinearLaw(step=STEP, per_request=0.0),
)
# Every draft token is accepted at temperature 0, none at 1.
DRAFTING = replace(
    PLAIN,
    num_speculative_tokens=3,
    cold_acceptance=1.0,
    hot_acceptance=0.0,
    hot_temperature=1.0,
)
COLD, HOT = frozenset({0.0}), frozenset({1.0})


def all_take(seconds):
    """Matches a list of times that are all the same."""
    return pytest.approx([seconds] * 60)


def every_second(*temperatures, seconds=100):
    """A request of each temperature, each second at the same moment."""
    return [
        Arrival(at=float(second), temperature=temperature, prompt=10, output=21, seed=second)
        for second in range(seconds)
        for temperature in temperatures
    ]


def test_a_token_takes_the_laws_time():
    """A plain step gives one token, a step with three accepted drafts four."""
    (plain,) = serve([Pool(1, PLAIN)], every_second(0.0)).per_token.values()
    drafting = serve([Pool(1, DRAFTING)], every_second(0.0, 1.0)).per_token

    assert plain == all_take(STEP)
    assert drafting[0.0] == all_take(STEP / 4)
    assert drafting[1.0] == all_take(STEP)


def test_each_pool_serves_its_own_temperatures():
    pools = [Pool(1, DRAFTING, HOT), Pool(1, PLAIN, COLD)]
    served = serve(pools, every_second(0.0, 1.0))

    assert served.per_token[0.0] == all_take(STEP)


def test_a_pool_sends_each_request_to_its_least_loaded_server():
    """Where each request makes a step longer, two at once take as long as one on two servers."""
    slower = replace(PLAIN, law=LinearLaw(step=0.0, per_request=STEP))
    together = serve([Pool(1, slower)], every_second(0.0, 0.0)).per_token[0.0]
    apart = serve([Pool(2, slower)], every_second(0.0, 0.0)).per_token[0.0]

    assert max(together) == pytest.approx(2 * STEP)
    assert apart == pytest.approx([STEP] * len(apart))


def test_the_first_token_waits_for_the_step_that_runs():
    """The second request arrives within the first one's step."""
    late = [replace(one, at=one.at + 0.4 * STEP) for one in every_second(0.0)]
    arrivals = [one for pair in zip(every_second(0.0), late, strict=True) for one in pair]
    served = serve([Pool(1, PLAIN)], arrivals)

    assert {round(one / STEP, 3) for one in served.first_token} == {1.0, 1.6}
    assert served.tokens_per_second == pytest.approx(2 * 21, rel=0.02)


def test_the_capacity_is_what_full_steps_give():
    """Four at once take 21 steps: one for the prompts, which gives the first token, and 20."""
    arrivals = every_second(0.0, seconds=400)

    assert capacity(PLAIN, arrivals) == pytest.approx(4 / (21 * STEP), rel=0.03)


@pytest.mark.parametrize("rate", [0.2, 0.71, 1.0])
def test_the_chance_of_a_token_gives_the_rate_of_the_draft(rate):
    token = chance(rate, 3)

    assert (token + token**2 + token**3) / 3 == pytest.approx(rate)


def test_arrivals_have_the_mix_and_the_rate_asked_for():
    mix = Mix(cold=0.6, prompt=(10, 20), output=(30, 40))
    arrivals = mix.arrivals(5.0, 4000, seed=1)

    assert arrivals == mix.arrivals(5.0, 4000, seed=1)
    assert len(arrivals) / arrivals[-1].at == pytest.approx(5.0, rel=0.1)
    cold = [one for one in arrivals if one.temperature == 0]
    assert len(cold) / len(arrivals) == pytest.approx(0.6, abs=0.03)
    assert {10, 20} <= {one.prompt for one in arrivals} <= set(range(10, 21))


def test_a_change_pairs_runs_of_the_same_arrivals():
    """All grow by a tenth, whatever their size; else ± is two standard errors of the changes."""
    assert relative_change([11, 110], [10, 100]) == "+10% ± 0%"
    assert relative_change([12, 110, 110], [10, 100, 110]) == "+10% ± 12%"
    assert relative_change([9], [10]) == "-10%"
