"""docs/metrics.md: its tables match the code, and the part written by hand is true."""

import re
from collections import Counter
from pathlib import Path

import pytest

from sidecar import wiring
from sidecar.analysis.attribution import attributor as attribution
from sidecar.analysis.attribution import attributors
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.limitation import Limitation
from sidecar.export.reference import all_metrics, metrics_reference
from sidecar.requests.middleware import asgi as middleware
from sidecar.requests.traces.otlp_receiver import TracesOptions
from sidecar.settings import load_settings

DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
DROPS = re.findall(
    r"^\| ([a-z, ]+) \| `(\w+)` \| (.+) \| (.+) \|$", DOCS.partition("\n## Why request")[2], re.MULTILINE
)


@pytest.mark.parametrize("source", ["proxy", "middleware", "traces"])
def test_every_reason_that_a_source_counts_is_explained_once(source):
    """By source, since two sources may mean different things by one word."""
    settings = load_settings(None, {"SPECDEC_REQUESTS__SOURCE": source})
    counted = wiring.request_source(settings, None).drop_reasons | attributors.DROP_REASONS
    explained = Counter(reason for sources, reason, _, _ in DROPS if source in sources.split(", "))
    assert explained == Counter(counted)


def test_the_lists_of_reasons_are_complete():
    """Reasons missing from the lists could still be counted."""
    text = "".join(Path(module.__file__).read_text() for module in (attribution, attributors))
    assert set(re.findall(r'dropped\["(\w+)"\]', text)) == attributors.DROP_REASONS


def test_the_numbers_are_the_codes():
    found = {reason: happened for _, reason, happened, _ in DROPS}
    assert f"more than {TracesOptions().max_spans:,} spans" in found["too_large"]
    assert f"within {TracesOptions().body_seconds:g} s" in found["timeout"]
    for reason in attributors.DROP_REASONS:
        assert f"more than {AttributionOptions().most_requests:,}" in found[reason].lower()


def test_what_to_do_names_settings_that_exist():
    known = set(
        re.findall(r"^\| `([\w.]+)` \|", (Path(__file__).parents[2] / "docs" / "settings.md").read_text(), re.MULTILINE)
    )
    groups = "|".join({key.partition(".")[0] for key in known if "." in key})
    cures = " ".join(f"{happened} {cure}" for _, _, happened, cure in DROPS)
    named = set(re.findall(rf"`((?:{groups})\.\w+)`", cures)) | set(re.findall(r"`(history|vllm_url)`", cures))
    assert {"proxy.observe_bytes", "traces.body_bytes", "middleware.socket", "history"} <= named
    assert named <= known
    for variable in set(re.findall(r"SPECDEC_\w+", cures)):
        assert variable in (middleware.__doc__ or "")


def test_the_committed_page_is_what_the_code_gives():
    assert metrics_reference(DOCS) == DOCS, "run make docs"


def test_every_metric_and_limitation_has_its_line():
    assert all(f"| `{metric.name}` | {metric.kind} |" in DOCS for metric in all_metrics())
    assert all(f"| `{limitation}` |" in DOCS for limitation in Limitation)
