"""vLLM's own series on our page."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.export.exporter import Exporter
from sidecar.export.reexport import own_series
from tests.export import reports


def samples(families):
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    }


def rendered_with(body, accept):
    exporter = Exporter(lambda: reports.shown(reports.report()), lambda: body)
    return asyncio.run(exporter.render(accept, ""))[0]


def own_samples(body, limit=10**6):
    return [*text_string_to_metric_families(own_series(body, limit).decode())]


def test_reexported_series_are_vllms_own(page_name, recorded):
    """Value by value, and nothing but vLLM's."""
    body = recorded(page_name)
    theirs = {one for one in samples(text_string_to_metric_families(body.decode())) if one[0].startswith("vllm:")}
    theirs = {one for one in theirs if not one[0].endswith("_created")}  # times, and OpenMetrics can't have them so
    assert samples(own_samples(body)) == theirs
    assert len(theirs) > 100


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "text/plain;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=allow-utf-8",
    ],
)
def test_names_are_vllms_own_in_whatever_format_is_asked_for(accept, recorded):
    """prometheus_client's OpenMetrics turns ``vllm:x`` into ``vllm_x``."""
    rendered = rendered_with(recorded("vllm-0.33.0.prom"), accept)
    found = {name for name, _, _ in samples(text_string_to_metric_families(rendered.decode()))}
    assert {"specdec_up", "vllm:num_requests_running", "vllm:spec_decode_num_drafts_total"} <= found
    assert not any(name.startswith("vllm_") for name in found)


@pytest.mark.parametrize("limit", [0, 1, 50, 300])
def test_it_is_bounded_and_whole_by_family(limit, recorded):
    found = own_samples(recorded("vllm-0.33.0.prom"), limit=limit)
    assert sum(len(family.samples) for family in found) <= limit
    whole = {family.name: len(family.samples) for family in own_samples(recorded("vllm-0.33.0.prom"))}
    assert all(len(family.samples) == whole[family.name] for family in found)
    assert bool(found) == (limit > 0)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff\n", b"vllm:x{ 1\n", b"vllm:x\n", b'vllm:x{a="b} 1\n', b"# TYPE vllm:x\n", b"# TYPE\n"],
)
def test_a_broken_page_is_nothing(body):
    assert own_series(body, 100) == b""


@given(
    st.lists(
        st.sampled_from(["vllm:x", "{", "}", '"', "=", "a", ",", " ", "1", "\n", "# TYPE ", "# HELP ", "\\", "# {"])
    )
)
@settings(max_examples=100, deadline=None)
def test_it_never_raises(pieces):
    assert isinstance(own_series("".join(pieces).encode(), 100), bytes)
