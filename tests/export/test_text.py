"""The text page against prometheus_client."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.analysis.histogram import Histogram
from sidecar.export.client import FamilyCollector, process_families
from sidecar.export.families import Families
from sidecar.export.metrics import Kind, Metric
from sidecar.export.text import TextRenderer

GAUGE = Metric("specdec_a_ratio", Kind.GAUGE, "Help with a \\ and 100 % of it.", ("model_name", "engine"))
COUNTER = Metric("specdec_b_total", Kind.COUNTER, "Help", ("reason",))
PLAIN = Metric("specdec_up", Kind.GAUGE, "Help\nin two lines")
HISTOGRAM = Metric("specdec_c_seconds", Kind.HISTOGRAM, "Help", ("model_name",))
SUMMARY = Metric("specdec_d_seconds", Kind.SUMMARY, "Help", ("phase", "quantile"))
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
