"""Temperatures that share a row are told apart where they differ, and only then."""

import random

import pytest

from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.finer import parts
from sidecar.wording.notes import hints
from tests.analysis.analysis_tools import Pod


def label_of(hundredth):
    return "0.7-1" if hundredth > 70 else "0-0.7"


def requests(rate, count, chance, spread=0.15, alike=1):
    """Requests of 60 draft tokens whose rates differ, and of which ``alike`` in turn resemble."""
    drafted, accepted = [], []
    for _ in range(count // alike):
        own = min(max(chance.gauss(rate, spread * 0.7**0.5 if alike > 1 else spread), 0.0), 1.0)
        for _ in range(alike):
            each = own
            if alike > 1:
                each = min(max(chance.gauss(own, spread * 0.3**0.5), 0.0), 1.0)
            drafted.append(60)
            accepted.append(sum(chance.random() < each for _ in range(60)))
    return Sums.of(drafted, accepted)


def test_temperatures_of_one_row_that_differ_are_told_with_the_edges_that_split_them():
    pod = Pod()
    for _ in range(10):
        for temperature, accepted in ((80, 14), (90, 13), (100, 8), (0, 20)):
            for more in (-1, 0, 1):
                pod.plugin.finish(temperature, accepted_tokens=accepted + more)
        pod.poll(pod.plugin.counted())

    hot = pod.temperature("0.7-1").parts
    assert [part.temperature for part in hot] == [0.8, 0.9, 1.0]
    assert [part.rate for part in hot] == pytest.approx([14 / 30, 13 / 30, 8 / 30])
    assert [part.share for part in hot] == pytest.approx([1 / 3] * 3)
    assert pod.temperature("0").parts == ()
    (told,) = [hint for hint in hints(pod.model()) if "differ" in hint]
    assert "47% ± 1 at 0.8, 43% ± 1 at 0.9, 27% ± 1 at 1 (acceptance rate" in told
    assert told.endswith("add 0.9 to `temperature_buckets` (at most eight edges).")


@pytest.mark.parametrize(
    "cells",
    [
        {80: (0.5, 300), 90: (0.5, 300)},  # alike
        {80: (0.5, 300), 90: (0.1, 20)},  # too few of the one
        {80: (0.5, 300), 90: (0.1, 300), 50: (0.5, 900)},  # another bucket holds most
    ],
)
def test_nothing_is_told_of_a_row_that_hides_nothing(cells):
    chance = random.Random(1)
    sums = {hundredth: requests(*cell, chance) for hundredth, cell in cells.items()}
    assert parts(sums, label_of, 30) == {}


@pytest.mark.slow
def test_a_row_of_one_rate_is_seldom_said_to_differ_even_where_requests_come_in_sessions():
    """Windows in which three temperatures truly accept the same."""
    chance = random.Random(7)
    for alike, most in ((1, 0), (5, 0.02)):
        false = 0
        for _ in range(400):
            sums = {at: requests(0.45, 50, chance, alike=alike) for at in (80, 90, 100)}
            false += bool(parts(sums, label_of, 30))
        assert false / 400 <= most, alike
