"""The error of a speedup: by requests, by the machine's noise, and by what is not known yet."""

from math import exp, sqrt
from random import Random

import pytest

from sidecar.analysis.speed.scatter import RequestSpread, Scatter, Times
from tests.analysis.analysis_tools import known_spread

BLOCK = 300.0
REQUESTS = 400  # a block's, of three seconds each: four at once
EACH = 3.0


class Pod:
    """A pod that marks its totals each minute.

    ``noise`` is that of a block's speedup; it ``lasts`` so many blocks.
    """

    def __init__(self, variance=0.0):
        self.random = Random(0)
        self.scatter = Scatter(known_spread(variance))
        self.at = 0.0
        self.totals = Times()
        self.scatter.mark(self.at, self.totals)

    def run(self, blocks, ratio=1.0, *, noise=0.0, lasts=0.0):
        kept = exp(-1 / lasts) if lasts else 0.0
        wanders = self.random.gauss(0, noise)
        for _ in range(blocks):
            wanders = kept * wanders + self.random.gauss(0, noise * sqrt(1 - kept**2))
            off = 1 + wanders
            for _ in range(5):
                self.at += BLOCK / 5
                actual = EACH * REQUESTS / 5
                grown = Times(ratio * off * actual, actual, REQUESTS / 5)
                self.totals = Times(*map(sum, zip(self.totals, grown, strict=True)))
                self.scatter.mark(self.at, self.totals)
        return self

    def error(self, blocks=1):
        return self.scatter.error(EACH * REQUESTS * blocks, BLOCK * blocks)


def assumed(blocks):
    """The noise that is assumed after so many blocks."""
    return 0.05 / (1 + blocks / 6)


def test_requests_that_differ_count_as_many_as_there_are():
    """Four hundred of them, or sixteen hundred."""
    pod = Pod(variance=0.04).run(4)
    assert pod.error() == pytest.approx(sqrt(0.04 / REQUESTS + assumed(4) ** 2), rel=0.01)
    assert pod.error(4) == pytest.approx(sqrt(0.04 / (4 * REQUESTS) + assumed(4) ** 2), rel=0.01)


def test_how_requests_differ_is_learnt_from_those_that_have_finished():
    """Before, it is assumed; a thousand of them outweigh that."""
    spread = RequestSpread()
    assert sqrt(spread.variance) == 0.25

    random = Random(0)
    for _ in range(5000):
        spread.add(plain=random.uniform(0.5, 1.5), actual=1.0)
    assert spread.variance == pytest.approx(1 / 12, rel=0.1)


def test_the_ratio_of_long_and_short_requests_of_one_speedup_does_not_vary():
    """It is the ratio that counts, not how long they are."""
    spread = RequestSpread()
    for seconds in [1.0, 9.0] * 2000:
        spread.add(plain=1.3 * seconds, actual=seconds)
    assert spread.variance < 0.001


def test_noise_that_is_not_known_yet_is_assumed_and_less_the_more_is_known():
    """Without it, the ± of a pod's first minutes would be that of its requests alone."""
    pod = Pod()
    errors = [pod.run(1).error() for _ in range(48)]
    assert errors == sorted(errors, reverse=True)
    assert (errors[5], errors[23]) == pytest.approx((0.025, 0.01), rel=0.02)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_noise_of_the_machine_is_in_the_error_though_requests_do_not_show_it(noise):
    """Blocks differ by it, however many requests there are."""
    quiet = Pod().run(96).error()
    assert Pod().run(96, noise=noise).error() == pytest.approx(noise, rel=0.3)
    assert quiet < 0.004


def test_noise_that_lasts_is_not_averaged_away():
    """Over half an hour, that of a block is; that of an hour is not."""
    short, long = (Pod().run(96, noise=0.03, lasts=lasts).error(6) for lasts in (0, 12))
    assert short < 0.02 < long


def test_after_a_clear_change_the_window_begins_anew_and_the_error_is_as_before():
    """Else the change would count as noise for eight hours."""
    pod = Pod().run(40, noise=0.01)
    before = pod.error()
    pod.run(3, 0.7, noise=0.01)

    assert 40 * BLOCK <= pod.scatter.changed_at <= 42 * BLOCK
    assert pod.error() == pytest.approx(before, rel=0.3)


def test_noise_is_no_change():
    """A stretch that is a little off begins nothing."""
    assert Pod().run(96, noise=0.03).scatter.changed_at == float("-inf")


def test_fewer_than_five_requests_tell_nothing():
    pod = Pod(variance=0.04).run(1)
    assert pod.scatter.error(4.9 * EACH, BLOCK) is None
    assert pod.scatter.error(5.1 * EACH, BLOCK) > 0.09


def test_a_request_is_no_longer_than_it_has_been_seen():
    """Eight that run all the time count as eight, though none has ended."""
    scatter = Scatter(RequestSpread())
    scatter.mark(0.0, Times())
    scatter.mark(100.0, Times(800.0, 800.0, 0.0))
    assert scatter.error(800.0, 100.0) == pytest.approx(sqrt(0.25**2 / 8 + 0.05**2))


def test_memory_is_bounded():
    """By eight hours with traffic."""
    pod = Pod().run(300)
    assert len(pod.scatter._blocks) == 96


def test_a_clock_that_is_set_back_begins_a_new_block():
    """What was known stays known."""
    pod = Pod().run(20, noise=0.03)
    before = pod.error()
    pod.at -= 86_400.0
    pod.run(1)

    assert pod.error() == pytest.approx(before, rel=0.1)
