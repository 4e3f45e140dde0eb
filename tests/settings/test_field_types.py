"""Durations and numbers, read and rendered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings.field_types import parse_duration, render_duration, render_number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1s", 1), ("5m", 300), ("1h", 3600), ("1.5m", 90), (" 2 s ", 2), ("7", 7), ("0.25", 0.25)],
)
def test_durations_are_seconds(text, seconds):
    assert parse_duration(text, 0, 3600) == seconds


def test_milliseconds_are_the_nearest_float():
    assert all(parse_duration(f"{n}ms", 0, 1) == n / 1000 for n in range(1000))


@given(st.floats(0, 1e6))
def test_rendered_durations_and_numbers_read_back_unchanged(value):
    assert parse_duration(render_duration(value), 0, 1e6) == value
    assert float(render_number(value)) == value


@pytest.mark.parametrize("text", ["", "fast", "nan", "1e999", "1m30s", "1 d", "-1s", "61m"])
def test_other_durations_are_refused(text):
    with pytest.raises(ValueError, match=r"^expected duration, 1s to 1h$"):
        parse_duration(text, 1, 3600)
