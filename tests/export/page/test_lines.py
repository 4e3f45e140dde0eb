"""The last hour as small lines: where they go, where they break, and what a reader hears."""

import re
from dataclasses import replace

import pytest

from sidecar.analysis.history import MINUTE, History, Line, Quantity
from sidecar.analysis.judgement import Verdict
from sidecar.export.lines import hour, hour_line
from sidecar.export.status_page import content
from tests.export import reports

RATE = Line("demo", "0", Quantity.ACCEPTANCE)


def of(rates):
    """A history with these acceptance rates, one a minute; None: no report."""
    history = History()
    for minute, rate in enumerate(rates):
        if rate is not None:
            tree = reports.report(reports.model(reports.temperature("0", rate=rate)))
            history.take(replace(tree, at=reports.NOW + MINUTE * minute))
    return history


def path(drawn):
    return re.findall(r'<path d="([^"]+)"', drawn)


def test_a_share_is_drawn_from_0_to_1_and_ends_at_the_right():
    assert path(hour_line(of([0.0, 0.5, 1.0]), RATE)) == ["M57 19h0L58 10L59 1"]


def test_a_minute_without_a_value_breaks_the_line():
    assert path(hour_line(of([1.0, None, 1.0]), RATE)) == ["M57 1h0M59 1h0"]


def test_a_reader_hears_the_lowest_the_highest_and_the_latest():
    drawn = hour_line(of([0.4, 0.8, 0.6]), RATE)
    assert 'role="img" aria-label="acceptance, the last hour: from 40% to 80%, latest 60%"' in drawn


@pytest.mark.parametrize("rates", [[], [0.5]])
def test_a_single_minute_is_no_line(rates):
    assert hour_line(of(rates), RATE) == ""


def test_a_speedup_goes_around_a_mark_at_1():
    history = History()
    for minute, actual in enumerate((60, 30, 15, 1)):
        tree = reports.report(
            reports.timed_model(reports.timed("0", Verdict.NET_POSITIVE, 0.7, 30, actual))
        )
        history.take(replace(tree, at=reports.NOW + MINUTE * minute))
    drawn = hour_line(history, Line("demo", "0", Quantity.SPEEDUP))

    assert '<path class="one" d="M0 10H59"/>' in drawn
    assert path(drawn) == ["M56 19h0L57 10L58 1L59 1"]


def test_each_row_and_tile_of_the_page_has_its_hour_and_a_young_sidecar_none():
    """A speedup where it is known, else the acceptance rate."""
    rows = (
        reports.timed("0", Verdict.NET_POSITIVE, 0.7, 30, 20),
        reports.temperature("1+", Verdict.NET_NEGATIVE, 0.3),
    )
    tree = reports.report(reports.timed_model(*rows))
    labels = re.findall(r'aria-label="(\w[\w ]+), the last hour', content(reports.with_hour(tree)))

    assert labels == [
        *("speedup", "speedup", "acceptance"),
        *("kv cache peak", "gap seconds", "first token p99 seconds", "requests waiting"),
    ]
    assert "the last hour:" not in content(reports.shown(tree))


def test_json_has_a_value_a_minute_and_null_where_nothing_was_known():
    history = of([0.5, None, 0.25])
    tree = reports.report(reports.model(reports.temperature("0")))
    found = hour(replace(reports.shown(tree), history=history))

    [series] = [
        one
        for one in found["series"]
        if (one["temperature"], one["quantity"]) == ("0", "acceptance")
    ]
    assert (series["model_name"], series["values"][-3:]) == ("demo", [0.5, None, 0.25])
    assert found["latest_minute"] == (reports.NOW + 2 * MINUTE) // MINUTE * MINUTE
    assert found["seconds"] == MINUTE
