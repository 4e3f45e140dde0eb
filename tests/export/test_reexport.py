"""vLLM's own series on our page."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.export.exporter import chosen, rendered
from sidecar.export.reexport import own_series
from tests.export import reports


def families(text):
    return [*text_string_to_metric_families(text.decode())]


def samples(found):
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in found
        for sample in family.samples
    }


def test_reexported_series_are_vllms_own(page_name, recorded):
    """Value by value, and nothing but vLLM's, on a page that can be parsed."""
    body = recorded(page_name)
    theirs = {one for one in samples(families(body)) if one[0].startswith("vllm:")}
    page = families(rendered(reports.shown(reports.report()), chosen("", ""), own_series(body, 10**6)))
    assert {one for one in samples(page) if not one[0].startswith(("specdec_", "process_"))} == theirs
    assert len(theirs) > 100


@pytest.mark.parametrize("limit", [0, 1, 50, 300])
def test_it_is_bounded_and_whole_by_family(limit, recorded):
    found = families(own_series(recorded("vllm-0.33.0.prom"), limit))
    assert sum(len(family.samples) for family in found) <= limit
    whole = {family.name: len(family.samples) for family in families(own_series(recorded("vllm-0.33.0.prom"), 10**6))}
    assert all(len(family.samples) == whole[family.name] for family in found)
    assert bool(found) == (limit > 0)


def test_exemplars_are_left_out_and_what_is_cut_off():
    page = (
        b'# HELP vllm:x X.\n# TYPE vllm:x counter\nvllm:x_total{a="b"} 5.0 # {id="7"} 1.0\n# HELP vllm:y Y.\n# TYPE vll'
    )
    assert own_series(page, 9) == b'# HELP vllm:x X.\n# TYPE vllm:x counter\nvllm:x_total{a="b"} 5.0\n'
    assert own_series(b"\xff<html>\n", 9) == b""
