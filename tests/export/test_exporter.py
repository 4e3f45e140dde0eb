"""The page in the requested format."""

import gzip
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.analysis.limitation import Limitation
from sidecar.analysis.verdict import Verdict
from sidecar.export.exporter import Families, chosen, families, rendered
from tests.export import reports

GOLDEN = Path(__file__).parent / "page.prom"
STRANGE = 'org/Model "7B" <b>&\\'
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def everything():
    """A model with a name that must be escaped, two engines, two temperatures and a reference."""
    engines = (
        reports.engine(STRANGE, speed=reports.speed(), limitations=frozenset({Limitation.NO_POSITIONS})),
        reports.engine(STRANGE, "1", coverage=None, speculation=None),
    )
    cold, hot = (
        reports.timed("0", Verdict.NET_POSITIVE, 0.7, 30, 20, saved_seconds=12.5),
        reports.timed("0.7-1", Verdict.NET_NEGATIVE, 0.3, 30, 33, lost_seconds=3.25),
    )
    groups = (reports.group("prompt_tokens", "0-512"), reports.group("output", "structured", 0.2, accepts_less=True))
    model = reports.timed_model(cold, hot, name=STRANGE, engines=engines, groups=groups)
    return reports.report(model, failures={"scrape": 0}, label_overflow={"engine": 0})


def test_the_page_as_it_was(update_golden):
    """Any change of the exposition shows here, to be looked at."""
    shown = reports.shown(everything(), ALERTING__RUNBOOKS="https://runbooks.example/")
    others = {"specdec_build_info", "specdec_threshold"}  # they vary with what is not exporting
    page = generate_latest(Families(one for one in families(shown) if one.name not in others)).decode()
    if update_golden:
        GOLDEN.write_text(page)
    assert page == GOLDEN.read_text()


def samples(found):
    """As a set; ``_created`` and ``_gsum`` never come."""
    return {
        (sample.name, frozenset(sample.labels.items()), float(sample.value))
        for family in found
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def render(accept="", accept_encoding=""):
    form = chosen(accept, accept_encoding)
    return rendered(reports.shown(everything()), form), form.headers


def test_openmetrics_has_the_same_samples():
    body, headers = render("application/openmetrics-text;version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    found = samples(openmetrics(body.decode()))
    assert found == samples(text_string_to_metric_families(render()[0].decode()))
    assert len(found) > 300


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0"),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5", None),
        ("text/plain;version=banana", None),
        ("application/openmetrics-text;version=99999.1", None),
        (";;;,,,===", None),
        ("text/plain;version=;escaping=", None),
        ("\u00ff" * 100, None),
    ],
)
def test_content_type_is_negotiated_and_nonsense_gets_an_answer(accept, content_type):
    body, headers = render(accept)
    if content_type is not None:
        assert headers["Content-Type"].startswith(content_type)
    is_text = headers["Content-Type"].startswith("text/plain")
    parse = text_string_to_metric_families if is_text else openmetrics
    assert "specdec_up" in {family.name for family in parse(body.decode())}
    assert "Accept-Encoding" in headers["Vary"]


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        *((one, True) for one in ("gzip", "gzip, deflate", "deflate, GZIP;q=0.5", "br;q=1, gzip")),
        *((one, False) for one in ("", "identity", "deflate", "xgzip")),
    ],
)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_gzip_where_it_is_taken(accepted, packed, accept):
    body, headers = render(accept, accepted)
    body = gzip.decompress(body) if packed else body
    assert (headers.get("Content-Encoding") == "gzip") == packed
    assert b"specdec_up" in body


def test_our_own_process_is_told_of():
    assert {b"process_resident_memory_bytes", b"process_cpu_seconds_total", b"process_open_fds"} <= {
        line.split(b" ")[0] for line in render()[0].splitlines()
    }
