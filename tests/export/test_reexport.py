"""vLLM's own series on our page."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.export.exporter import Exporter
from sidecar.export.families import Family
from sidecar.export.metrics import Kind, Metric
from sidecar.export.reexport import own_series

GAUGE = Metric("specdec_a_ratio", Kind.GAUGE, "Help with a \\ and 100 % of it.", ("model_name", "engine"))
PLAIN = Metric("specdec_up", Kind.GAUGE, "Help\nin two lines")


def samples(families):
    """As a set; ``_created`` and ``_gsum`` never come."""
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    }


def rendered_with(body, accept="", limit=10_000):
    exporter = Exporter(lambda: ([Family(PLAIN, (), [()], [1.0])], {"a": body}), limit)
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
