"""Groups are compared with requests otherwise alike; the errors are those of repeated traffic."""

from random import Random
from statistics import stdev

import pytest

from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.split.group_watch import SPANS, GroupWatch
from sidecar.analysis.split.strata import ENGINE, Kind, differences

COLD, HOT = "0", "1+"
ADAPTER = "adapter"
SPREADS = {COLD: Spread(0.03), HOT: Spread(0.03)}


def kind(temperature, adapter, engine="0", **others):
    """A ``Kind``; ``others`` are its groups by table."""
    return Kind(temperature, engine, ((ADAPTER, adapter), *others.items()))


def requests_of(random, rate, number):
    """Each has one rate of its own and 10 drafts of 3 tokens."""
    accepted = []
    for _ in range(number):
        own = min(max(random.gauss(rate, 0.15), 0.0), 1.0)
        accepted.append(sum(random.random() < own for _ in range(30)))
    return Sums.of([30] * number, accepted)


def compared(*cells, requests=60, seed=0, min_requests=5, by=ADAPTER, spreads=SPREADS):
    """``cells`` are (temperature, adapter, rate), or (kind, rate)."""
    random, sums = Random(seed), {}
    for *what, rate in cells:
        cell = what[0] if len(what) == 1 else kind(*what)
        sums[cell] = sums.get(cell, Sums()) + requests_of(random, rate, requests)
    return differences(by, sums, spreads, min_requests)


def test_a_group_that_is_only_hotter_accepts_no_less():
    """Simpson's paradox: the adapter's requests are mostly hot, and in total accept far less."""
    mostly_hot = [(HOT, "adapter", 0.3)] * 5 + [(COLD, "adapter", 0.8)]
    mostly_cold = [(COLD, "none", 0.8)] * 5 + [(HOT, "none", 0.3)]
    found = compared(*mostly_hot, *mostly_cold)["adapter"]
    assert found.value == pytest.approx(0, abs=0.04)
    assert not found.is_clearly_lower


@pytest.mark.parametrize(("by", "low"), [("output", "structured"), ("prompt_tokens", None)])
def test_a_group_is_not_blamed_for_another_ones_requests(by, low):
    """Only structured output accepts less, and long prompts are mostly structured."""
    rates = {"structured": 0.5, "free": 0.65}
    times = {("long", "structured"): 8, ("short", "free"): 8}
    cells = [
        (kind(COLD, "none", output=output, prompt_tokens=prompt), rates[output])
        for prompt in ("long", "short")
        for output in rates
        for _ in range(times.get((prompt, output), 1))
    ]
    found = compared(*cells, by=by)
    assert [group for group, one in found.items() if one.is_clearly_lower] == ([low] if low else [])


def test_engines_are_compared_at_the_same_groups():
    """One that gets the hard requests accepts no less; one that is worse at each does."""
    shares = {("0", "easy"): 9, ("1", "hard"): 9}
    rates = {"easy": 0.8, "hard": 0.4}
    cells = [
        (kind(COLD, adapter, engine), rates[adapter])
        for engine in "01"
        for adapter in rates
        for _ in range(shares.get((engine, adapter), 1))
    ]
    assert not any(one.is_clearly_lower for one in compared(*cells, by=ENGINE).values())

    worse = [(one, rate - 0.2 * (one.engine == "1")) for one, rate in cells]
    found = compared(*worse, by=ENGINE)
    assert [name for name, one in found.items() if one.is_clearly_lower] == ["1"]


def test_a_group_that_accepts_less_at_each_temperature_is_clearly_lower():
    """The one that accepts more is not named."""
    found = compared((COLD, "a", 0.5), (HOT, "a", 0.2), (COLD, "b", 0.8), (HOT, "b", 0.5))
    assert found["a"].value == pytest.approx(-0.3, abs=0.05)
    assert (found["a"].is_clearly_lower, found["b"].is_clearly_lower) == (True, False)


def test_the_error_is_how_far_repeated_traffic_scatters():
    """So twice the error covers what chance does."""
    cells = ((COLD, "a", 0.6), (COLD, "b", 0.6), (HOT, "a", 0.4), (HOT, "b", 0.4))
    runs = [compared(*cells, seed=seed)["a"] for seed in range(200)]
    assert stdev(run.value for run in runs) == pytest.approx(runs[0].error, rel=0.2)
    assert sum(abs(run.value) < 2 * run.error for run in runs) / len(runs) > 0.9


def test_sessions_widen_the_error():
    """By as much as successive minutes differ more than single requests explain."""
    cells = ((COLD, "a", 0.5), (COLD, "b", 0.68))
    (alone, _), (alike, _) = (
        compared(*cells, spreads={COLD: Spread(0.03, factor)}).values() for factor in (1.0, 4.0)
    )
    assert alike.error == pytest.approx(2 * alone.error)
    assert (alone.is_clearly_lower, alike.is_clearly_lower) == (True, False)


def test_a_few_that_happen_to_be_alike_are_no_more_certain():
    """Five requests of one rate would have no error at all."""
    sums = {kind(COLD, name): Sums.of([30] * 5, [n] * 5) for name, n in (("a", 15), ("b", 20))}
    (found, _) = differences(ADAPTER, sums, SPREADS, 5).values()
    assert found.error == pytest.approx((2 * 0.03 / 5) ** 0.5)
    assert not found.is_clearly_lower


def test_of_many_equal_groups_none_differs_by_chance():
    """Many groups are compared at every poll."""
    flagged = 0
    for seed in range(40):
        groups = compared(*((COLD, str(number), 0.5) for number in range(20)), seed=seed)
        flagged += sum(difference.is_clearly_lower for difference in groups.values())
    assert flagged == 0  # of 800 comparisons


@pytest.mark.parametrize(
    "cells",
    [
        [(COLD, "a", 0.6)],  # with nobody
        [(COLD, "a", 0.6), (HOT, "b", 0.6)],  # at no temperature
    ],
)
def test_what_cannot_be_compared_has_no_difference(cells):
    """It is absent, not 0."""
    assert compared(*cells) == {}


def counted(**numbers):
    """``numbers`` are requests by temperature and group: ``cold_a`` and so on."""
    accepted = {
        kind(*name.split("_")): [10 + number % 3 for number in range(n)]
        for name, n in numbers.items()
    }
    cells = {cell: Sums.of([30] * len(each), each) for cell, each in accepted.items()}
    return set(differences(ADAPTER, cells, SPREADS, 20))


@pytest.mark.parametrize(
    ("numbers", "groups"),
    [
        ({"cold_a": 20, "cold_b": 20}, {"a", "b"}),
        ({"cold_a": 20, "cold_b": 19}, set()),  # on either side
        ({"cold_a": 10, "cold_b": 10, "hot_a": 10, "hot_b": 10}, {"a", "b"}),
        # At one of the temperatures.
        ({"cold_a": 10, "cold_b": 20, "hot_a": 10, "hot_b": 4}, set()),
        # Most of a has nothing to compare it with.
        ({"cold_a": 20, "cold_b": 20, "hot_a": 21}, {"b"}),
    ],
)
def test_few_requests_have_no_difference(numbers, groups):
    """Each side of a comparison needs enough of them."""
    assert counted(**numbers) == groups


def test_the_sums_of_several_requests_are_those_of_each_together():
    """They are added at once where they are in the same cells."""
    each = [Sums.of([drafted], [accepted]) for drafted, accepted in ((9, 3), (12, 12), (6, 0))]
    assert Sums.of([9, 12, 6], [3, 12, 0]) == total(each) == Sums(3, 27, 15, 261, 153, 171)
    assert total(each) - each[0] == Sums.of([12, 6], [12, 0])
    assert total([]) == Sums()


class Watched:
    """A watch that is judged each minute."""

    def __init__(self):
        self.at, self.watch, self.random = 1000.0, GroupWatch(), Random(1)

    def serve(self, minutes, low, requests=10):
        """Two adapters' requests of each minute: one accepts 0.7, and the other one ``low``."""
        for _ in range(minutes):
            self.at += 60.0
            cells = {
                kind(COLD, name): requests_of(self.random, rate, requests)
                for name, rate in (("usual", 0.7), ("legal", low))
            }
            self.watch.add(self.at, cells)
            self.watch.judge(self.at, SPREADS, 20)
        return self

    @property
    def is_lower(self):
        found = self.watch.differences.get(ADAPTER, {}).get("legal")
        return found is not None and found.is_clearly_lower


def test_nothing_is_said_of_less_than_a_quarter_of_an_hour():
    watched = Watched().serve(15, 0.3)
    assert watched.watch.differences == {}
    assert watched.serve(1, 0.3).is_lower


def test_a_small_difference_is_certain_within_the_hour():
    """A quarter of an hour would never do."""
    watched = Watched().serve(20, 0.61, requests=5)
    assert not watched.is_lower
    assert watched.serve(40, 0.61, requests=5).is_lower


def test_a_group_that_no_longer_accepts_less_is_told_no_longer():
    """The last quarter of an hour contradicts what the hour still says."""
    assert not Watched().serve(45, 0.4, requests=30).serve(20, 0.7, requests=30).is_lower


def test_what_has_been_told_goes_on_as_long_as_it_is_half_as_certain():
    """A difference that is just certain would otherwise come and go with every poll."""
    watched = Watched().serve(16, 0.3)
    assert watched.serve(60, 0.67, requests=120).is_lower
    assert not Watched().serve(80, 0.67, requests=120).is_lower


def test_groups_are_compared_once_a_minute():
    """Many kinds of requests take some time, and little is new before."""
    watched = Watched().serve(30, 0.3)
    assert not watched.watch.is_due(watched.at + 59)
    assert watched.watch.is_due(watched.at + 60)
    assert watched.watch.is_due(watched.at - 7200)  # the clock was set back
    watched.watch.judge(watched.at - 7200, SPREADS, 20)
    assert watched.watch.differences == {}


def test_what_is_old_is_forgotten():
    watched = Watched().serve(30, 0.3)
    watched.watch.judge(watched.at + 2 * SPANS[-1], SPREADS, 20)
    assert watched.watch.differences == {}
