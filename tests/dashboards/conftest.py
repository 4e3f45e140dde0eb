"""The committed dashboards, and a real Prometheus that scrapes sidecars."""

import asyncio
import json
import math
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest
from dashboard_tools import ROOT

sys.path.insert(0, str(ROOT))  # the builders are not part of the installed package

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
    found = {path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert set(found) == {"specdec-operator", "specdec-fleet"}
    return found


class Prometheus:
    """Asks a running Prometheus."""

    def __init__(self, http, base):
        self._http = http
        self._base = base

    async def instant(self, expression):
        """The series that have a number now: pairs of labels and value."""
        data = await self._ask("query", query=expression)
        return [
            (found["metric"], float(found["value"][1])) for found in data if not math.isnan(float(found["value"][1]))
        ]

    async def over_time(self, expression, seconds=10):
        """The series that had a number lately: pairs of labels and latest value."""
        now = time.time()
        data = await self._ask("query_range", query=expression, start=now - seconds, end=now, step=1)
        numbers = [(found["metric"], [v for _, v in found["values"] if v != "NaN"]) for found in data]
        return [(labels, float(values[-1])) for labels, values in numbers if values]

    async def ready(self):
        try:
            return bool(await self.instant("vector(1)"))
        except (OSError, ValueError):  # not listening yet, or not done loading
            return False

    async def _ask(self, what, **parameters):
        parameters = {name: str(value) for name, value in parameters.items()}
        async with self._http.get(f"{self._base}/api/v1/{what}", params=parameters) as response:
            answer = json.loads(await response.read())
        assert answer["status"] == "success", (parameters["query"], answer)
        return answer["data"]["result"]


@pytest.fixture
def prometheus(http, tmp_path, unused_tcp_port):
    """``async with prometheus(addresses) as server`` scrapes them each second, as the job ``specdec``."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on this machine")

    @asynccontextmanager
    async def run(addresses):
        (tmp_path / "rules.yml").write_text(RULES)
        base = f"127.0.0.1:{unused_tcp_port}"
        scrapes = {"job_name": "specdec", "static_configs": [{"targets": list(addresses)}]}
        # Other programs that Prometheus scrapes: itself, and one that is gone.
        others = {"job_name": "others", "static_configs": [{"targets": [base, "127.0.0.1:1"]}]}
        settings = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config = {"global": settings, "rule_files": ["rules.yml"], "scrape_configs": [scrapes, others]}
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        process = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={base}",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server = Prometheus(http, f"http://{base}")
        try:
            async with asyncio.timeout(60):
                while not await server.ready():
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            yield server
        finally:
            process.kill()
            await process.wait()

    return run
