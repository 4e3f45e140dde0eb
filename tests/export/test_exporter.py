"""The page in the requested format."""

import gzip
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.judgement import Verdict
from sidecar.export.exporter import Families, chosen, compressed, families
from tests.export import reports

GOLDEN = Path(__file__).parent / "page.prom"
TEXT = "text/plain; version=0.0.4"
STRANGE = 'org/Model "7B" <b>&\\'
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def everything():
    """A model with a name that must be escaped, two engines, two temperatures and a reference."""
    engines = (
        reports.engine(
            STRANGE, speed=reports.speed(), limitations=frozenset({Limitation.NO_POSITIONS})
        ),
        reports.engine(STRANGE, "1", coverage=None, speculation=None),
    )
    cold = reports.timed("0", Verdict.NET_POSITIVE, 0.7, 30, 20, saved_seconds=12.5)
    hot = reports.timed("0.7-1", Verdict.NET_NEGATIVE, 0.3, 30, 33, lost_seconds=3.25)
    groups = (reports.group("prompt_tokens", "0-512"), reports.group("output", "structured", 0.2))
    model = reports.timed_model(
        cold, hot, name=STRANGE, engines=engines, groups=groups, findings=(reports.STRUCTURED,)
    )
    return reports.report(model, failures={"scrape": 0}, label_overflow={"engine": 0})


def test_the_exposition_is_the_golden_page(request):
    shown = reports.shown(everything(), ALERTING__RUNBOOKS="https://runbooks.example/")
    others = {"specdec_build_info", "specdec_threshold"}  # they vary with what is not exporting
    page = generate_latest(
        Families(family for family in families(shown) if family.name not in others)
    ).decode()
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(page)
    assert page == GOLDEN.read_text(), "if the change is right: pytest tests/export --update-golden"


def samples(parsed):
    """As a set; ``_created`` and ``_gsum`` never come."""
    return {
        (sample.name, frozenset(sample.labels.items()), float(sample.value))
        for family in parsed
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def render(accept="", accept_encoding=""):
    return compressed(reports.shown(everything()), chosen(accept, accept_encoding))


def test_openmetrics_has_the_same_samples_also_compressed():
    body = gzip.decompress(render("application/openmetrics-text;version=1.0.0", "gzip"))
    assert body.endswith(b"# EOF\n")
    parsed = samples(openmetrics(body.decode()))
    assert parsed == samples(text_string_to_metric_families(render().decode()))
    assert len(parsed) > 300


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0"),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("text/plain;version=banana", TEXT),  # nonsense gets an answer, here and below
        (";;;,,,===", TEXT),
        ("text/plain;version=;escaping=", TEXT),
        ("\u00ff" * 100, TEXT),
    ],
)
def test_the_content_type_is_negotiated(accept, content_type):
    headers = chosen(accept, "").headers
    assert headers["Content-Type"].startswith(content_type)
    assert headers["Vary"] == "Accept, Accept-Encoding"


def test_a_page_is_compressed_for_clients_that_accept_gzip():
    for accepted in ("gzip", "gzip, deflate", "deflate, GZIP;q=0.5", "br;q=1, gzip"):
        assert chosen("", accepted).headers["Content-Encoding"] == "gzip"
    for refused in ("", "identity", "deflate", "xgzip"):
        assert "Content-Encoding" not in chosen("", refused).headers


def test_the_sidecar_s_own_process_is_on_the_page():
    names = {line.split(b" ")[0] for line in render().splitlines()}
    assert {
        b"process_resident_memory_bytes",
        b"process_cpu_seconds_total",
        b"process_open_fds",
    } <= names
