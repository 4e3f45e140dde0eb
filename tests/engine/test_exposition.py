"""Whole pages: a remembered shape gives the same as the line reader.

Also what is refused, and what is never raised.
"""

import gzip
import re
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.engine import exposition
from sidecar.engine.exposition import read_lines
from sidecar.errors import (
    EmptyPage,
    NoLogStats,
    NotAnExposition,
    PageError,
    TruncatedPage,
)
from tests.engine.engine_tools import NAME, RUNNING, agrees, judged, page_reader, values
from tests.marks import slow

WAITING = "vllm:num_requests_waiting"
_NUMBERS = re.compile(rb"(?m)^((?:vllm|process)[^#\n]*) (\S+)$")


def gauge(name, *samples):
    return "".join(
        [f"# HELP {name} Text.\n# TYPE {name} gauge\n", *(f"{name}{s}\n" for s in samples)]
    )


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
    [], *(_SAMPLES[:number] for number in (1, 2, 3)),
    _SAMPLES[1:], [_SAMPLES[1], _SAMPLES[0]], [_SAMPLES[0]] * 2,
    [_SAMPLES[0], "_x 1\n# a comment\n" + NAME + _SAMPLES[1]], [_SAMPLES[0], '{engine="1" } 2'],
    *([f'{{engine="0"}}{text}'] for text in (
        " 5", "  7", " 1_0", " one", "", " \uff11", " 1 1712345678000", " 2 1712345679000",
        ' 1 # {trace_id="x"} 0.5',
    )),
    *([f'{{model_name="{text}'] for text in (
        'a b"} 1', 'a b"} 2', 'a 7 b"} 1', 'a 8 b"} 1', 'a 7"} 7', 'a 8"} 8',
        'a # b"} 1', 'a # c"} 1', 'a\x0bb"} 1',
    )),
]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_page_is_noticed_in_the_same_poll(place):
    """What was remembered of the layout of the page before is not read by place any more."""
    for before, after in permutations(_SHAPES, 2):
        reader = page_reader()
        for samples in (before, before, after, after, before):
            blocks = [gauge(WAITING, _SAMPLES[0])]
            blocks.insert(place, gauge(NAME, *samples))
            body = "".join(blocks).encode()
            agrees(reader.read(body), body)


PACKED = gzip.compress(b"vllm:x 1\n" * 100, mtime=0)
TYPE = f"# TYPE {NAME} gauge"


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html>\n<html><body><h1>502 Bad Gateway</h1>\n</body></html>\n",
        b"<html></html>",
        b'{"detail": "Not Found"}', b'{\n  "detail": "Not Found"\n}\n', b"Internal Server Error\n",
        PACKED, PACKED + b"\n", bytes(range(256)) * 64, bytes(range(256)) * 64 + b"\n",
        b"\0" * 1000 + b"\n", b"\xff\xfeh\0t\0\n", b"# a comment\n", b"up 1\n",
        f"{TYPE}\r\n{RUNNING}\r\n".encode(),
    ],
)  # fmt: skip
def test_a_body_that_is_no_exposition_is_refused(body):
    with pytest.raises(NotAnExposition):
        page_reader().read(body)


@pytest.mark.parametrize("body", [b"", b"\n\n\n"])
def test_an_empty_page_is_named(body):
    """vLLM serves one if the directory of its metrics files is missing."""
    with pytest.raises(EmptyPage):
        page_reader().read(body)


PYTHON = 'python_info{version="3.12"} 1.0\n# TYPE process_start_time_seconds gauge\n'
REQUESTS = "# TYPE http_requests_total counter\n"
SERVED = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 3.0\n'
START = "process_start_time_seconds 1.7e9\n"


@pytest.mark.parametrize("body", [PYTHON + START + REQUESTS, PYTHON + START + REQUESTS + SERVED])
def test_an_api_server_that_counts_nothing_of_its_engines_is_named(body):
    """vLLM with --disable-log-stats, before and after its first request."""
    with pytest.raises(NoLogStats):
        page_reader().read(body.encode())


HEADERS = f"# HELP {NAME} x.\n{TYPE}\n"
HIGHR = "# TYPE http_request_duration_highr_seconds histogram\n"
RUST_SERVED = (
    "# TYPE http_requests counter\n"
    'http_requests_total{method="POST",status="2xx",handler="/v1/completions"} 3\n'
)


@pytest.mark.parametrize(
    "body",
    [HEADERS, HIGHR, RUST_SERVED + HIGHR],
    ids=["older: families without series", "newer: no such family", "after a request"],
)
def test_the_rust_frontend_has_no_engine_before_the_first_has_told_it_anything(body):
    """That is neither another program nor a vLLM with --disable-log-stats."""
    page = page_reader().read(f"{body}# EOF\n".encode())

    assert (page.series, page.is_rust) == ((), True)


def test_the_end_of_openmetrics_needs_no_newline():
    """By its grammar; whatever else has none may be cut."""
    body = f"{TYPE}\n{RUNNING}\n# EOF\n".encode()
    reader = page_reader()
    for _ in range(2):  # learned, then remembered
        assert values(reader.read(body.rstrip(b"\n"))) == values(page_reader().read(body))

    with pytest.raises(TruncatedPage):
        reader.read(body.removesuffix(b"F\n"))


@pytest.mark.parametrize(
    "body", ["# TYPE go_threads gauge\ngo_threads 1\n# EOF\n", f"{START}{TYPE}\n{RUNNING}\n# EOF\n"]
)
def test_openmetrics_alone_is_not_the_rust_frontend(body):
    """Another program's, and Python's own with its start time."""
    assert not page_reader().read(body.encode()).is_rust


def test_another_program_s_page_is_not_taken_for_vllm_s():
    page = page_reader().read((PYTHON + START).encode())

    assert [series.name for series in page.series] == ["process_start_time_seconds"]


@pytest.mark.parametrize("learned", [True, slow(False)])
def test_a_page_cut_anywhere_gives_no_wrong_value(learned, recorded):
    """A part of a page is cut at every byte.

    The outcome is an error, or fewer series with the values of the whole page.
    """
    families = (b"spec_decode", b"time_to_first_token", b"cache_config")
    lines = recorded("vllm-0.9.2-multiproc.prom").splitlines(keepends=True)
    body = b"".join(line for line in lines if any(family in line for family in families))
    whole = values(page_reader().read(body))
    reader, errors = page_reader(), []
    for cut in range(len(body)):
        if learned and body[cut - 1] == ord("\n"):
            reader.read(body)
        try:
            part = values(reader.read(body[:cut]))
        except PageError as error:
            errors.append(type(error))
            continue
        assert body[:cut].endswith(b"\n")
        assert part.items() <= whole.items()
    agrees(reader.read(body), body)  # what was refused has left nothing behind
    assert set(errors) == {EmptyPage, NotAnExposition, TruncatedPage}
    assert errors[-1] is TruncatedPage


_FRAGMENTS = st.sampled_from(
    [
        NAME, "vllm:", *'{}"\\,= \t\n\r\x0b\0#-_\u00e9', "# TYPE ", "# HELP ", " gauge\n",
        "1", "1_0", "NaN", "+Inf", "1e999", 'model_name="m"', "engine", "le", "# {",
    ]
)  # fmt: skip


@given(st.lists(_FRAGMENTS, max_size=60).map("".join))
@settings(max_examples=200)
def test_both_ways_of_reading_agree_on_any_text(text):
    """A page read again and again gives what the line reader alone gives, or its error."""
    body = f"{TYPE}\n{RUNNING}\n{text}\n".encode()
    try:
        judged(body)
    except PageError as error:
        with pytest.raises(type(error)):
            page_reader().read(body)
        return
    reader = page_reader()
    for _ in range(10):
        agrees(reader.read(body), body)


def test_every_sample_is_read_as_prometheus_client_reads_it(page_name, recorded):
    """An independent parser, over all samples of a page rather than those in use."""
    body = recorded(page_name)
    theirs = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            theirs[sample.name, frozenset(sample.labels.items())] = sample.value
    wanted = frozenset(name.encode() for name, _ in theirs)
    page, _ = read_lines(body, wanted, len(theirs))
    assert {
        (name, frozenset(labels)): value for (name, labels), value in values(page).items()
    } == theirs
