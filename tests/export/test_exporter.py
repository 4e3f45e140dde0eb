"""The page in the requested format."""

import asyncio
import gzip

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.export.exporter import Exporter, TooManyRenders
from sidecar.export.families import Family
from sidecar.export.metrics import Kind, Metric

GAUGE = Metric("specdec_a_ratio", Kind.GAUGE, "Help with a \\ and 100 % of it.", ("model_name", "engine"))
PLAIN = Metric("specdec_up", Kind.GAUGE, "Help\nin two lines")


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def samples(families):
    """As a set; ``_created`` and ``_gsum`` never come."""
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def exporter(state, export_options):
    from sidecar.export.collector import OwnCounts, export_families

    families = export_families([state.report(1_700_000_003.5)], OwnCounts(failures={"west": 0}), export_options)
    exporter = Exporter(lambda: (families, {}))
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


@pytest.fixture
def counted():
    """An exporter whose readings are numbered, with a clock set by hand; ``read`` gives a page's value of ``up``."""

    class Counted:
        now, readings = 100.0, 0

        def __init__(self):
            self.exporter = Exporter(self.reading, every=1.0, clock=lambda: self.now)

        def reading(self):
            self.readings += 1
            return [Family(PLAIN, (), [()], [float(self.readings)])], {}

        async def read(self, accept="", encoding="", *names):
            return (await self.exporter.render(accept, encoding, frozenset(names))).body

    return Counted()


async def test_however_many_ask_the_state_is_read_and_rendered_once_an_interval(counted):
    pages = [await counted.read("", encoding) for _ in range(50) for encoding in ("", "gzip")]
    assert len({id(page) for page in pages}) == 2
    assert counted.readings == 1
    counted.now += 1.0
    assert b"specdec_up 2.0\n" in await counted.read()


async def test_pages_of_single_metrics_are_limited_and_whole_ones_are_not(counted):
    for number in range(16):
        await counted.read("", "", "specdec_up", str(number))
    with pytest.raises(TooManyRenders):
        await counted.read("", "", "specdec_up", "16")
    assert b"specdec_up 1.0\n" in await counted.read("", "", "specdec_up", "3")
    assert b"specdec_up 1.0" in await counted.read("application/openmetrics-text;version=1.0.0")
    counted.now += 1.0
    assert b"specdec_up 2.0\n" in await counted.read("", "", "specdec_up", "16")
