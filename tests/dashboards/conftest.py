"""The committed dashboards."""

import json

import pytest

from tests.dashboards.dashboard_tools import ROOT


@pytest.fixture(scope="session")
def pages():
    """The committed dashboards by uid."""
    dashboards = {path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert set(dashboards) == {"specdec-operator", "specdec-fleet"}
    return dashboards
