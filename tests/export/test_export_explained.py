"""What docs/metrics.md says of reasons and limitations."""

import re
from collections import Counter
from pathlib import Path

import pytest

from sidecar.analysis.attribution import attributor as attribution
from sidecar.analysis.attribution import attributors
from sidecar.analysis.limitation import Limitation
from sidecar.export.explained import DROPS, LIMITATION_CURES
from sidecar.export.reference import metrics_reference
from sidecar.requests.middleware import asgi as middleware
from sidecar.requests.source import drop_reasons
from sidecar.settings import load_settings
from sidecar.settings.tree import leaves

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("source", ["proxy", "middleware", "traces"])
def test_every_reason_that_a_source_counts_is_explained_once(source):
    """By source, since two sources may mean different things by one word."""
    counted = drop_reasons(load_settings(None, {"SPECDEC_REQUESTS__SOURCE": source})) | attributors.DROP_REASONS
    explained = Counter(drop.reason for drop in DROPS if source in drop.sources)
    assert explained == Counter(counted)


def test_the_lists_of_reasons_are_whole():
    """Reasons that are not in them could be counted all the same."""
    text = "".join(Path(module.__file__).read_text() for module in (attribution, attributors))
    assert set(re.findall(r'dropped\["(\w+)"\]', text)) == attributors.DROP_REASONS


def test_every_limitation_has_its_cure():
    assert set(LIMITATION_CURES) == set(Limitation)


def test_cures_name_settings_that_exist():
    known = {leaf.key for leaf in leaves()}
    groups = "|".join({key.partition(".")[0] for key in known if "." in key})
    cures = " ".join(f"{drop.meaning} {drop.cure}" for drop in DROPS)
    named = set(re.findall(rf"`((?:{groups})\.\w+)`", cures)) | set(re.findall(r"`(history|vllm_url)`", cures))
    assert {"proxy.observe_bytes", "traces.body_bytes", "middleware.socket", "history"} <= named
    assert named <= known
    for variable in set(re.findall(r"SPECDEC_\w+", cures)):
        assert variable in (middleware.__doc__ or "")


def test_the_committed_page_is_what_the_code_gives():
    assert DOCS.read_text() == metrics_reference(), "run make docs"
