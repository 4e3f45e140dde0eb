"""Whole pages: what is refused, what is skipped, and what is never raised."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.engine.lines import read_lines
from sidecar.errors import NotAnExposition, PageError, TruncatedPage
from tests.engine.engine_tools import NAME, RUNNING, agrees, judged, page_reader, values


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html>\n<html><body><h1>502 Bad Gateway</h1>\n</body></html>\n",
        b"<html></html>",
        b'{"detail": "Not Found"}',
        b'{\n  "detail": "Not Found"\n}\n',
        b"Internal Server Error\n",
        gzip.compress(b"vllm:x 1\n" * 100, mtime=0),
        gzip.compress(b"vllm:x 1\n" * 100, mtime=0) + b"\n",
        bytes(range(256)) * 64,
        bytes(range(256)) * 64 + b"\n",
        b"\0" * 1000 + b"\n",
        b"\xff\xfeh\0t\0\n",
        b"",
        b"\n\n\n",
        b"# a comment\n",
        b"up 1\n",
    ],
)
def test_a_body_that_is_no_exposition_is_refused(body):
    with pytest.raises(NotAnExposition):
        page_reader().read(body)


def test_a_page_with_carriage_returns_is_refused(recorded):
    with pytest.raises(NotAnExposition):
        page_reader().read(recorded("vllm-0.33.0.prom").replace(b"\n", b"\r\n"))


def test_some_broken_lines_are_counted_and_the_rest_is_read(recorded):
    sound = recorded("vllm-0.33.0.prom")
    body = b"vllm:num_requests_running{ 1\n" + sound + b"vllm:num_requests_running one\n"
    reader = page_reader()
    for _ in range(3):
        page = reader.read(body)
        assert page.malformed == 2
        assert values(page) == values(page_reader().read(sound))


def test_a_page_without_types_is_read_in_full(recorded):
    body = recorded("vllm-0.33.0.prom")
    bare = b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(b"#"))
    reader = page_reader()
    for _ in range(10):
        assert values(reader.read(bare)) == values(page_reader().read(body))


@pytest.mark.parametrize("learned", [True, False])
def test_a_page_cut_anywhere_gives_no_wrong_value(learned, recorded):
    """At every byte of a part of a page: an error, or fewer series with the values of the whole page."""
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
    assert set(errors) == {NotAnExposition, TruncatedPage}
    assert errors[-1] is TruncatedPage


_FRAGMENTS = st.sampled_from(
    [
        NAME, "vllm:", *'{}"\\,= \t\n\r\x0b\0#-_\u00e9', "# TYPE ", "# HELP ", " gauge\n", "1", "1_0", "NaN", "+Inf",
        "1e999", 'model_name="m"', "engine", "le", "# {",
    ]
)  # fmt: skip


@given(st.lists(_FRAGMENTS, max_size=60).map("".join))
@settings(max_examples=500)
def test_both_ways_of_reading_agree_on_any_text(text):
    """A page read again and again gives what the line reader alone gives, or its error."""
    body = f"# TYPE {NAME} gauge\n{RUNNING}\n{text}\n".encode()
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
    samples = read_lines(body, wanted, len(theirs)).samples
    assert {(series.name, frozenset(series.labels)): value for series, value in samples.items()} == theirs
