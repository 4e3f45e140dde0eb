"""docs/metrics.md is the contract of the metrics: its tables match the code, and the part written by hand is true."""

import re
from pathlib import Path

from scripts.metrics_reference import metrics_reference
from sidecar.analysis.split.lives import Lives
from sidecar.export.metrics import MOST_SERIES

DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_names_types_labels_and_meanings_of_the_metrics_are_those_of_the_contract():
    """Rules, dashboards and users build on them."""
    assert metrics_reference(DOCS) == DOCS, "`scripts/docs` updates docs/metrics.md; CHANGELOG.md lists what breaks"


def test_the_series_budget_is_told():
    assert f"at most {MOST_SERIES:,} series" in DOCS.replace("\n", " ")


def test_every_reason_for_dropping_a_message_is_explained():
    explained = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", DOCS.partition("\n## Why messages")[2], re.MULTILINE)
    assert sorted(explained) == sorted(Lives(0.0, 0.98).report("").dropped)
