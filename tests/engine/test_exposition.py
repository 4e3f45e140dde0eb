"""Reading with a remembered shape gives the same as the line reader, whatever changes between two polls."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine import exposition
from sidecar.errors import PageError
from tests.engine.engine_tools import NAME, agrees, page_reader, snapshot

WAITING = "vllm:num_requests_waiting"
_NUMBERS = re.compile(rb"(?m)^((?:vllm|process)[^#\n]*) (\S+)$")


@pytest.fixture
def reader():
    return page_reader()


def gauge(name, *samples):
    return "".join([f"# HELP {name} Text.\n# TYPE {name} gauge\n", *(f"{name}{s}\n" for s in samples)])


_VALUES = st.one_of(
    st.integers(0, 10**15).map(lambda n: repr(float(n))),
    st.floats().map(repr),
    st.sampled_from(["+Inf", "-Inf", "NaN", "0", "1e-320", "1.7976931348623157e+308", "-0.0"]),
)


@given(data=st.data())
@settings(max_examples=8)
def test_a_remembered_shape_reads_any_values_as_the_line_reader_does(data, page_name, recorded):
    body = recorded(page_name)
    reader = page_reader()
    reader.read(body)
    pool = data.draw(st.lists(_VALUES, min_size=1, max_size=20))
    turn = iter(range(10**6))
    changed = _NUMBERS.sub(lambda m: m[1] + b" " + pool[next(turn) % len(pool)].encode(), body)
    assert changed.count(b"\n") == body.count(b"\n")
    agrees(reader.read(changed), changed)


@pytest.fixture
def no_lines(monkeypatch):
    """From now on nothing is read line by line."""
    return lambda: monkeypatch.setattr(exposition, "read_lines", None)


def test_steady_pages_are_not_read_line_by_line(page_name, recorded, reader, no_lines):
    body = recorded(page_name)
    reader.read(body)
    no_lines()
    for poll in range(40):
        page = reader.read(_NUMBERS.sub(lambda m, poll=poll: m[1] + b" " + str(poll).encode(), body))
        assert set(page.values) == {float(poll)}


def test_values_that_are_not_numbers_do_not_keep_a_page_on_the_slow_path(recorded, reader, no_lines):
    body = re.sub(rb"(?m)^(vllm:num_requests_running\S*) \S+$", rb"\1 NaN", recorded("vllm-0.33.0.prom"))
    reader.read(body)
    no_lines()
    agrees(reader.read(body), body)


def test_series_are_the_same_object_while_the_page_keeps_its_shape(recorded):
    reader = page_reader()
    first, *others = (reader.read(recorded("vllm-0.33.0.prom")).series for _ in range(20))
    assert all(series is first for series in others)


_SAMPLES = ['{engine="0"} 1', '{engine="1"} 2', '{engine="2"} 3']


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_SAMPLES[:1], _SAMPLES[:2]),
        (_SAMPLES[:2], _SAMPLES[:1]),
        (_SAMPLES[:2], [_SAMPLES[1], _SAMPLES[0]]),
        (_SAMPLES[:2], _SAMPLES[1:]),
        (_SAMPLES[:2], []),
        (_SAMPLES[:2], [_SAMPLES[0], "_x 1\n# a comment\n" + NAME + _SAMPLES[1]]),
        (_SAMPLES[:2], [_SAMPLES[0], '{engine="1" } 2']),
        (_SAMPLES[:2], [_SAMPLES[0], '{engine="1"} 2 1712345678000']),
        (_SAMPLES[:1], ['{engine="0"} 1 1712345678000']),
        (['{engine="0"} 1 1712345678000'], ['{engine="0"} 2 1712345679000']),
        (_SAMPLES[:1], ['{engine="0"} 1 # {trace_id="x"} 0.5']),
        (_SAMPLES[:1], ['{engine="0"} 1_0']),
        (_SAMPLES[:1], ['{engine="0"} one']),
        (_SAMPLES[:1], ['{engine="0"}']),
        (_SAMPLES[:1], ['{engine="0"} \uff11']),
        (_SAMPLES[:1], ['{engine="0"}  7']),
        (_SAMPLES[:1], ['{engine="0"} 1', '{engine="0"} 1']),
        (['{model_name="a b"} 1'], ['{model_name="a b"} 2']),
        (['{model_name="a 7 b"} 1'], ['{model_name="a 8 b"} 1']),
        (['{model_name="a 7"} 7'], ['{model_name="a 8"} 8']),
        (['{model_name="a # b"} 1'], ['{model_name="a # c"} 1']),
        (['{model_name="a\x0bb"} 1'], ['{model_name="a\x0bb"} 2']),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_page_is_noticed_in_the_same_poll(before, after, place, reader):
    for samples in (before, before, after, after, before):
        blocks = [gauge(WAITING, _SAMPLES[0])]
        blocks.insert(place, gauge(NAME, *samples))
        body = "".join(blocks).encode()
        agrees(reader.read(body), body)


def test_a_refused_page_does_not_disturb_the_next(recorded, reader):
    body = recorded("vllm-0.33.0.prom")
    good = reader.read(body)
    for bad in (b"<html>", b"x\n" * 50, body[:-1], b"", body[: len(body) // 2].rsplit(b"\n", 1)[0] + b"\n"):
        try:
            snapshot(bad)
            reader.read(bad)
        except PageError:
            pass
        again = reader.read(body)
        agrees(again, body)
        assert again.series == good.series
