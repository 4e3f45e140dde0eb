"""Reading with a remembered shape gives the same as the line reader, whatever changes between two polls."""

import re
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine import exposition
from sidecar.errors import PageError
from tests.engine.engine_tools import NAME, agrees, page_reader, snapshot

WAITING = "vllm:num_requests_waiting"
_NUMBERS = re.compile(rb"(?m)^((?:vllm|process)[^#\n]*) (\S+)$")


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


def test_steady_pages_are_not_read_line_by_line(page_name, recorded, monkeypatch):
    """Whatever their values are; their series are the same object."""

    def with_values(text):
        return _NUMBERS.sub(lambda match: match[1] + b" " + text, recorded(page_name))

    reader = page_reader()
    first = reader.read(with_values(b"NaN"))
    monkeypatch.setattr(exposition, "read_lines", None)
    for poll in range(40):
        page = reader.read(with_values(str(poll).encode()))
        assert set(page.values) == {float(poll)}
        assert page.series is first.series
    agrees(reader.read(with_values(b"NaN")), with_values(b"NaN"))


_SAMPLES = ['{engine="0"} 1', '{engine="1"} 2', '{engine="2"} 3']
_SHAPES = [
    [], *(_SAMPLES[:number] for number in (1, 2, 3)), _SAMPLES[1:], [_SAMPLES[1], _SAMPLES[0]], [_SAMPLES[0]] * 2,
    [_SAMPLES[0], "_x 1\n# a comment\n" + NAME + _SAMPLES[1]], [_SAMPLES[0], '{engine="1" } 2'],
    *([f'{{engine="0"}}{text}'] for text in (
        " 5", "  7", " 1_0", " one", "", " \uff11", " 1 1712345678000", " 2 1712345679000", ' 1 # {trace_id="x"} 0.5',
    )),
    *([f'{{model_name="{text}'] for text in (
        'a b"} 1', 'a b"} 2', 'a 7 b"} 1', 'a 8 b"} 1', 'a 7"} 7', 'a 8"} 8', 'a # b"} 1', 'a # c"} 1', 'a\x0bb"} 1',
    )),
]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_page_is_noticed_in_the_same_poll(place):
    for before, after in permutations(_SHAPES, 2):
        reader = page_reader()
        for samples in (before, before, after, after, before):
            blocks = [gauge(WAITING, _SAMPLES[0])]
            blocks.insert(place, gauge(NAME, *samples))
            body = "".join(blocks).encode()
            agrees(reader.read(body), body)


def test_a_refused_page_does_not_disturb_the_next(recorded):
    reader, body = page_reader(), recorded("vllm-0.33.0.prom")
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
