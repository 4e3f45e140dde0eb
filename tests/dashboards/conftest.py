"""The committed dashboards, and a real Prometheus that scrapes sidecars."""

import json
import math
import time
from contextlib import asynccontextmanager

import pytest

from tests.alerts.scene import shipped
from tests.dashboards.dashboard_tools import ROOT
from tests.debian_servers import free_port, running_prometheus, scraping

RULES = """
groups:
- name: test
  interval: 1s
  rules:
  - {alert: SpecDecodeAcceptanceLow, expr: specdec_up == 1, labels: {severity: critical}}
  - {alert: SpecDecodeFleetWide, expr: count(specdec_up) > 0, labels: {severity: warning}}
"""


@pytest.fixture(scope="session")
def pages():
    """The committed dashboards by uid."""
    dashboards = {path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert set(dashboards) == {"specdec-operator", "specdec-fleet"}
    return dashboards


class Numbers:
    """What a running Prometheus has numbers for."""

    def __init__(self, prometheus):
        self._prometheus = prometheus

    async def instant(self, expression):
        """The series that have a number now: pairs of labels and value."""
        return [
            (labels, value) for labels, value in await self._prometheus.instant(expression) if not math.isnan(value)
        ]

    async def over_time(self, expression, seconds=20):
        """The series that had a number recently: pairs of labels and latest value."""
        now = time.time()
        data = await self._prometheus.ask("query_range", query=expression, start=now - seconds, end=now, step=1)
        numbers = [(series["metric"], [v for _, v in series["values"] if v != "NaN"]) for series in data]
        return [(labels, float(values[-1])) for labels, values in numbers if values]


@pytest.fixture
def prometheus(http, tmp_path):
    """``async with prometheus(addresses) as server`` scrapes them as the job ``specdec``, each scrape within 4 s."""

    @asynccontextmanager
    async def run(addresses):
        (tmp_path / "rules.yml").write_text(RULES)
        groups = [{"name": "recorded", "interval": "2s", "rules": [rule for rule in shipped() if "record" in rule]}]
        (tmp_path / "recording.yml").write_text(json.dumps({"groups": groups}))
        port = free_port()
        # Other programs that Prometheus scrapes: itself, and one that is gone.
        others = scraping(f"127.0.0.1:{port}", "127.0.0.1:1", job="others", interval="4s")
        config = scraping(*addresses, interval="4s") | {"rule_files": ["rules.yml", "recording.yml"]}
        config["scrape_configs"] += others["scrape_configs"]
        async with running_prometheus(http, tmp_path, config, port) as running:
            yield Numbers(running)

    return run
