"""Formats: our text against prometheus_client's, OpenMetrics, negotiation."""

import asyncio
import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.analysis.histogram import Histogram
from sidecar.export.client import FamilyCollector, process_families
from sidecar.export.exporter import Exporter, Reading
from sidecar.export.families import Families, Family
from sidecar.export.metrics import Kind, Metric
from sidecar.export.reexport import own_series
from sidecar.export.text import TextRenderer

GAUGE = Metric("specdec_a_ratio", Kind.GAUGE, "Help with a \\ and 100 % of it.", ("model_name", "engine"))
COUNTER = Metric("specdec_b_total", Kind.COUNTER, "Help", ("reason",))
PLAIN = Metric("specdec_up", Kind.GAUGE, "Help\nin two lines")
HISTOGRAM = Metric("specdec_c_seconds", Kind.HISTOGRAM, "Help", ("model_name",))
SUMMARY = Metric("specdec_d_seconds", Kind.SUMMARY, "Help", ("phase", "quantile"))

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
_NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(10**20), 10**20),
    st.booleans(),
    st.sampled_from([0.0, -0.0, 1e6, 999999.0, 1e16, 1e-5, 5e-324, 123456789.123, 1e21, math.inf, -math.inf, math.nan]),
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["%s", "%", '"', "\\", "\n", "{}", "\\n"])


def built(gauges, counters, plain, histograms, scope=None):
    families = Families(("target",) if scope else ())
    if scope:
        families.scope = (scope,)
    for (model, engine), value in gauges.items():
        families.add(GAUGE, value, model, engine)
        families.add(SUMMARY, value, model, engine)
    for reason, value in counters.items():
        families.add(COUNTER, value, reason)
    families.add(PLAIN, plain)
    for model, values in histograms.items():
        distribution = Histogram((0.0, 0.5, 1e6, 1e16))
        for value in values:
            distribution.observe(value)
        families.add_histogram(HISTOGRAM, distribution, model)
    return families.all()


def reference(families):
    return generate_latest(FamilyCollector(families))


_PAGES = st.builds(
    built,
    st.dictionaries(st.tuples(_TEXT, _TEXT), _NUMBERS, max_size=4),
    st.dictionaries(_TEXT, _NUMBERS, max_size=4),
    st.none() | _NUMBERS,
    st.dictionaries(_TEXT, st.lists(st.floats(0, 1e17)), max_size=3),
    st.none() | _TEXT.filter(bool),
)


@given(st.lists(_PAGES, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_text_is_that_of_prometheus_client_byte_for_byte(pages):
    """One renderer for all pages: what it learned from one must not show on another."""
    renderer = TextRenderer()
    for families in [*pages, *pages]:
        assert renderer.render(families) == reference(families)


@given(_NUMBERS)
def test_numbers_are_written_as_prometheus_client_does(value):
    families = built({}, {}, value, {})
    assert TextRenderer().render(families) == reference(families)


def test_whole_state_is_the_same_in_both(state, export_options):
    from sidecar.export.collector import OwnCounts, export_families

    families = export_families([state.report(1_700_000_003.5)], OwnCounts(failures={"west": 0}), export_options)
    families += process_families(ProcessCollector(registry=None))
    assert TextRenderer().render(families) == reference(families)


def samples(families):
    """As a set; ``_created`` and ``_gsum`` never come."""
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    }


@given(_PAGES)
@settings(max_examples=100, deadline=None)
def test_text_says_what_was_put_in(families):
    """An independent parser reads the samples back."""
    text = TextRenderer().render(families).decode()
    assert samples(text_string_to_metric_families(text)) == samples(FamilyCollector(families).collect())


@pytest.fixture
def exporter(state, export_options):
    from sidecar.export.collector import OwnCounts, export_families

    families = export_families([state.report(1_700_000_003.5)], OwnCounts(failures={"west": 0}), export_options)
    exporter = Exporter(lambda: Reading(families))
    return lambda *asked: asyncio.run(exporter.render(*asked))


def without_process(parsed):
    return {sample for sample in samples(parsed) if not sample[0].startswith("process_")}


def test_openmetrics_has_the_same_samples(exporter):
    rendered = exporter("application/openmetrics-text;version=1.0.0", "")
    assert rendered.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert rendered.body.endswith(b"# EOF\n")
    text = exporter("", "").body.decode()
    found = without_process(openmetrics(rendered.body.decode()))
    assert found == without_process(text_string_to_metric_families(text))
    assert len(found) > 90


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5", None),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("text/plain;version=banana", None),
        ("application/openmetrics-text;version=banana", None),
        ("application/openmetrics-text;version=99999.1", None),
        (";;;,,,===", None),
        ("text/plain;version=;escaping=", None),
        ("\u00ff" * 100, None),
    ],
)
def test_content_type_is_negotiated_and_nonsense_gets_an_answer(accept, content_type, exporter):
    rendered = exporter(accept, "")
    if content_type is not None:
        assert rendered.headers["Content-Type"].startswith(content_type)
    is_text = rendered.headers["Content-Type"].startswith("text/plain")
    parse = text_string_to_metric_families if is_text else openmetrics
    assert "specdec_up" in {family.name for family in parse(rendered.body.decode())}
    assert "Accept-Encoding" in rendered.headers["Vary"]


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        *(
            (accepted, True)
            for accepted in ("gzip", "gzip, deflate", "deflate, GZIP;q=0.5", "gzip;q=1.0", "br;q=1, gzip")
        ),
        *((accepted, False) for accepted in ("", "identity", "gzip;q=0", "gzip; q=0.0", "deflate", "xgzip")),
    ],
)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_gzip_where_it_is_taken(accepted, packed, accept, exporter):
    rendered = exporter(accept, accepted, frozenset({"specdec_up"}))
    plain = exporter(accept, "", frozenset({"specdec_up"}))
    assert (rendered.headers.get("Content-Encoding") == "gzip") == packed
    assert (gzip.decompress(rendered.body) if packed else rendered.body) == plain.body


@pytest.mark.parametrize(
    ("names", "families"),
    [
        ({"specdec_up"}, {"specdec_up"}),
        ({"specdec_engine_drafts_total"}, {"specdec_engine_drafts"}),
        ({"specdec_kv_cache_sampled_usage_ratio"}, {"specdec_kv_cache_sampled_usage_ratio"}),
        ({"specdec_kv_cache_sampled_usage_ratio_bucket"}, {"specdec_kv_cache_sampled_usage_ratio"}),
        ({"specdec_up", "specdec_build_info", "none"}, {"specdec_up", "specdec_build_info"}),
        ({"none"}, set()),
        ({"specdec"}, set()),
        ({"process_start_time_seconds"}, {"process_start_time_seconds"}),
    ],
)
def test_names_asked_for(names, families, exporter):
    body = exporter("", "", frozenset(names)).body.decode()
    assert {family.name for family in text_string_to_metric_families(body)} == families


def test_our_own_process_is_told_of(exporter):
    body = exporter("", "").body.decode()
    found = {name for name, _, _ in samples(text_string_to_metric_families(body))}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= found


def test_two_renderings_of_an_unchanged_state_are_the_same(exporter):
    def lines():
        return [line for line in exporter("", "").body.splitlines() if not line.startswith(b"process_")]

    assert lines() == lines()


def rendered_with(body, accept="", limit=10_000):
    exporter = Exporter(lambda: Reading([Family(PLAIN, (), [()], [1.0])], {"a": body}), limit)
    return asyncio.run(exporter.render(accept, ""))


def own_samples(*bodies, limit=10**6):
    return [*text_string_to_metric_families(own_series(dict(zip("ab", bodies, strict=False)), limit).decode())]


def test_reexported_series_are_vllms_own(page_name, recorded):
    """Value by value, and nothing but vLLM's."""
    body = recorded(page_name)
    theirs = {s for s in samples(text_string_to_metric_families(body.decode())) if s[0].startswith("vllm:")}
    theirs = {s for s in theirs if not s[0].endswith("_created")}  # times, and OpenMetrics can't have them so
    text = rendered_with(body).body.decode()
    ours = {s for s in samples(text_string_to_metric_families(text)) if s[0].startswith("vllm")}
    assert ours == theirs
    assert len(theirs) > 100


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=allow-utf-8",
    ],
)
def test_reexported_names_are_vllms_own_in_whatever_format_is_asked_for(accept, recorded):
    """prometheus_client's OpenMetrics turns ``vllm:x`` into ``vllm_x``."""
    rendered = rendered_with(recorded("vllm-0.33.0.prom"), accept)
    parse = openmetrics if "openmetrics" in rendered.headers["Content-Type"] else text_string_to_metric_families
    found = {name for name, _, _ in samples(parse(rendered.body.decode()))}
    assert {"specdec_up", "vllm:num_requests_running", "vllm:spec_decode_num_drafts_total"} <= found
    assert not any(name.startswith("vllm_") for name in found)


@pytest.mark.parametrize("limit", [0, 1, 50, 300])
def test_reexport_is_bounded_and_whole_by_family(limit, recorded):
    found = own_samples(recorded("vllm-0.33.0.prom"), limit=limit)
    assert sum(len(family.samples) for family in found) <= limit
    whole = {family.name: len(family.samples) for family in own_samples(recorded("vllm-0.33.0.prom"))}
    assert all(len(family.samples) == whole[family.name] for family in found)
    assert bool(found) == (limit > 0)


def test_series_of_two_servers_are_told_apart(recorded):
    pages = [recorded("vllm-0.33.0.prom"), recorded("vllm-0.32.0.prom")]
    of_both = samples(own_samples(*pages))
    for target, page in zip("ab", pages, strict=True):
        of_one = {(name, labels | {("target", target)}, value) for name, labels, value in samples(own_samples(page))}
        assert len(of_one) > 100
        assert of_one <= of_both
    assert len(of_both) == sum(len(samples(own_samples(page))) for page in pages)


def test_families_of_different_types_are_not_mixed():
    one, other = b"# TYPE vllm:x counter\nvllm:x_total 1\n", b"# TYPE vllm:x histogram\nvllm:x_count 2\n"
    assert {(name, value) for name, _, value in samples(own_samples(one, other))} == {("vllm:x_total", "1.0")}


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff\n", b"vllm:x{ 1\n", b"vllm:x\n", b'vllm:x{a="b} 1\n', b"# TYPE vllm:x\n", b"# TYPE\n"],
)
def test_reexport_of_a_broken_page_is_nothing(body):
    assert own_series({"a": body}, 100) == b""


@given(
    st.lists(
        st.sampled_from(["vllm:x", "{", "}", '"', "=", "a", ",", " ", "1", "\n", "# TYPE ", "# HELP ", "\\", "# {"])
    )
)
@settings(max_examples=300, deadline=None)
def test_reexport_never_raises(pieces):
    rendered_with("".join(pieces).encode(), limit=100)
