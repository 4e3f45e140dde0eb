"""Reading with a remembered layout gives the same as the line reader, whatever changes between two polls."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.errors import PageError
from tests.engine.engine_tools import judged, page_reader, snapshot

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
_NUMBERS = re.compile(rb"(?m)^((?:vllm|process)[^#\n]*) (\S+)$")


@pytest.fixture
def reader():
    return page_reader()


def agrees(page, body):
    expected = judged(body)
    assert page.layout.series == expected.series
    assert list(map(repr, page.values)) == list(map(repr, expected.values))
    assert page.malformed == expected.malformed


def gauge(name, *samples):
    return "".join([f"# HELP {name} Text.\n# TYPE {name} gauge\n", *(f"{name}{s}\n" for s in samples)])


_VALUES = st.one_of(
    st.integers(0, 10**15).map(lambda n: repr(float(n))),
    st.floats().map(repr),
    st.sampled_from(["+Inf", "-Inf", "NaN", "0", "1e-320", "1.7976931348623157e+308", "-0.0"]),
)


@given(data=st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_remembered_layout_reads_any_values_as_the_line_reader_does(data, page_name, recorded):
    body = recorded(page_name)
    reader = page_reader()
    reader.read(body)
    pool = data.draw(st.lists(_VALUES, min_size=1, max_size=20))
    turn = iter(range(10**6))
    changed = _NUMBERS.sub(lambda m: m[1] + b" " + pool[next(turn) % len(pool)].encode(), body)
    assert changed.count(b"\n") == body.count(b"\n")
    agrees(reader.read(changed), changed)


def test_steady_pages_are_not_read_line_by_line(page_name, recorded, reader):
    body = recorded(page_name)
    reader.read(body)
    for poll in range(40):
        page = reader.recall(_NUMBERS.sub(lambda m, poll=poll: m[1] + b" " + str(poll).encode(), body))
        assert set(page.values) == {float(poll)}


def test_values_that_are_not_numbers_do_not_keep_a_page_on_the_slow_path(recorded, reader):
    body = re.sub(rb"(?m)^(vllm:num_requests_running\S*) \S+$", rb"\1 NaN", recorded("vllm-0.33.0.prom"))
    reader.read(body)
    agrees(reader.recall(body), body)


def test_layout_is_the_same_object_while_the_page_keeps_its_shape(recorded):
    reader = page_reader()
    layouts = {id(reader.read(recorded("vllm-0.33.0.prom")).layout) for _ in range(20)}
    assert len(layouts) == 1


_SAMPLES = ['{engine="0"} 1', '{engine="1"} 2', '{engine="2"} 3']


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_SAMPLES[:1], _SAMPLES[:2]),
        (_SAMPLES[:2], _SAMPLES[:1]),
        (_SAMPLES[:2], [_SAMPLES[1], _SAMPLES[0]]),
        (_SAMPLES[:2], _SAMPLES[1:]),
        (_SAMPLES[:2], []),
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
def test_a_changed_block_is_noticed_in_the_same_poll(before, after):
    first = (gauge(RUNNING, *before) + gauge(WAITING, _SAMPLES[0])).encode()
    second = (gauge(RUNNING, *after) + gauge(WAITING, _SAMPLES[0])).encode()
    for polls in range(1, 9):
        reader = page_reader()
        for _ in range(polls):
            agrees(reader.read(first), first)
        agrees(reader.read(second), second)
        agrees(reader.read(first), first)


_NEW = 'vllm:spec_decode_num_drafts_total{engine="0"} 5\n'
_TYPED = "# HELP vllm:spec_decode_num_drafts_total x\n# TYPE vllm:spec_decode_num_drafts_total counter\n" + _NEW
_FOREIGN = "# HELP up x\n# TYPE up gauge\nup 1\n"


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("new", [_TYPED, _NEW, "# a comment\n" + _NEW], ids=["typed", "untyped", "after a comment"])
def test_a_new_family_is_found_in_the_same_poll(new, place):
    parts = [gauge(RUNNING, *_SAMPLES[:2]), _FOREIGN, gauge(WAITING, *_SAMPLES[:2]), _FOREIGN.replace("up", "down")]
    second = "".join([*parts[:place], new, *parts[place:]]).encode()
    reader = page_reader()
    reader.read("".join(parts).encode())
    agrees(reader.read(second), second)


@pytest.mark.parametrize(
    "more",
    [_FOREIGN + f'{RUNNING}{{engine="7"}} 9\n', f"# more\n{RUNNING}{_SAMPLES[1]}\n" + _FOREIGN],
    ids=["under another family's header", "after a comment"],
)
def test_series_that_appear_elsewhere_are_found_in_the_same_poll(more):
    first = (gauge(RUNNING, _SAMPLES[0]) + _FOREIGN).encode()
    second = (gauge(RUNNING, _SAMPLES[0]) + more).encode()
    reader = page_reader()
    reader.read(first)
    agrees(reader.read(second), second)


@pytest.mark.parametrize(
    "comment",
    ["# a comment\n", "#\n", "\n", "# EOF\n", f"# TYPE {RUNNING} gauge\n", f"# HELP x # TYPE {RUNNING} gauge\n"],
)
def test_comments_between_samples(comment):
    body = "".join(
        [gauge(RUNNING, _SAMPLES[0]), comment, f"{RUNNING}{_SAMPLES[1]}\n", comment, gauge(WAITING, *_SAMPLES), comment]
    ).encode()
    reader = page_reader()
    for _ in range(10):
        agrees(reader.read(body), body)
        assert reader.read(body).values == [1.0, 2.0, 1.0, 2.0, 3.0]


def test_families_in_another_order_are_read_immediately():
    """Multi-process pages come in the order of a directory listing."""
    parts = [gauge(RUNNING, *_SAMPLES), gauge(WAITING, *_SAMPLES), _FOREIGN]
    orders = [parts, parts[::-1], [parts[1], parts[0], parts[2]]]
    reader = page_reader()
    for order in orders * 3:
        body = "".join(order).encode()
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
        assert again.layout == good.layout


@pytest.mark.parametrize(
    "foreign",
    [b"up 1\n", b"# TYPE up gauge\nup 1\n", b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1\n"],
)
def test_vllms_page_is_read_immediately_after_a_page_of_another_program(foreign, recorded):
    """As where vLLM registers its metrics only some time after its server is up."""
    body = recorded("vllm-0.33.0.prom")
    for polls in range(1, 10):
        reader = page_reader()
        for _ in range(polls):
            reader.read(foreign)
        agrees(reader.read(foreign + body), foreign + body)
        agrees(reader.read(body), body)
