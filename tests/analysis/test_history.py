"""The last hour: what each minute keeps, what it forgets, and how much room it takes."""

import tracemalloc
from dataclasses import replace

import pytest

from sidecar.analysis.history import MINUTES, History, Line, Quantity
from sidecar.engine.names import Phase
from sidecar.errors import BadStatus
from tests.export.reports import NOW as AT
from tests.export.reports import by_bucket, down, engine, latency, model, report, temperature

RATE = Line("demo", "0", Quantity.ACCEPTANCE)


def at(minute, rate=0.5, **more):
    tree = report(model(temperature("0", rate=rate)), **more)
    return replace(tree, at=AT + 60 * minute)


def test_a_minute_keeps_its_latest_value_and_the_newest_is_last():
    history = History()
    for minute, rate in ((0, 0.2), (0.4, 0.3), (1, 0.4)):
        history.take(at(minute, rate))

    values = history.values(RATE)
    assert len(values) == MINUTES
    assert values[-2:] == [pytest.approx(0.3), pytest.approx(0.4)]
    assert values[:-2] == [None] * (MINUTES - 2)
    assert history.latest_minute == (AT + 60) // 60 * 60


def test_a_minute_in_which_nothing_is_known_is_a_gap():
    """Neither a minute without a report nor one while vLLM is down repeats a value."""
    history = History()
    history.take(at(0))
    history.take(at(2))
    history.take(at(3, scrape=down(BadStatus(500))))

    assert [value is None for value in history.values(RATE)[-4:]] == [False, True, False, True]


def test_a_gap_within_vllms_first_bucket_is_unknown_and_not_0():
    coarse = by_bucket(*[(0.0, 1.0)] * 4)
    tree = report(model(engines=(engine(latencies={Phase.TPOT: coarse}),)))
    history = History()
    history.take(tree)
    assert Line("demo", None, Quantity.GAP) not in history.lines

    wide = engine(latencies={Phase.TPOT: latency(0.01)})
    history.take(report(model(engines=(engine(latencies={Phase.TPOT: coarse}), wide))))
    assert history.values(Line("demo", None, Quantity.GAP))[-1] == pytest.approx(0.04)


def test_after_an_hour_a_line_is_forgotten():
    history = History()
    history.take(at(0))
    for minute in range(1, MINUTES):
        history.take(at(minute, scrape=down(BadStatus(500))))
    assert RATE in history.lines

    history.take(at(MINUTES, scrape=down(BadStatus(500))))
    assert history.lines == ()


@pytest.mark.parametrize("minute", [-5, 600])
def test_of_another_time_nothing_is_kept(minute):
    """A clock that is set back, and a sidecar that was suspended."""
    history = History()
    history.take(at(0, 0.2))
    history.take(at(minute, 0.6))

    assert history.values(RATE) == [None] * (MINUTES - 1) + [pytest.approx(0.6)]


def test_eight_engines_and_sixteen_temperatures_take_less_than_a_mebibyte():
    labels = [f"{number / 8:g}" for number in range(16)]
    models = [
        model(*map(temperature, labels), name=f"model-{number}", engines=(engine(),))
        for number in range(8)
    ]
    tree = report(*models)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        history = History()
        for minute in range(2 * MINUTES):
            history.take(replace(tree, at=AT + 60 * minute))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(history.lines) > 8 * 16
    assert after - before < 2**20


def test_lines_are_bounded_whatever_models_come():
    history = History()
    for number in range(2000):
        history.take(report(model(temperature("0"), name=f"model-{number}")))

    assert len(history.lines) == 512
