"""The manifests of the monitoring.

The rules and dashboards that scripts/docs generates, and the bound on series.
"""

import json
import re
import shutil
import subprocess

import _gojsonnet
import pytest
import yaml

from sidecar.analysis.series import PROMISED
from sidecar.settings.groups import Limits
from tests.deploy.deploy_tools import (
    CHART,
    KUBERNETES,
    MOST_APPLIED,
    PAGES,
    ROOT,
    RULES,
    read_all,
)


def test_the_manifests_have_every_rule_and_every_dashboard():
    rules, maps = (
        read_all((KUBERNETES / "monitoring" / f"{name}.yaml").read_text())
        for name in ("rules", "dashboards")
    )
    assert [rule["spec"] for rule in rules] == RULES, "`scripts/docs` updates the manifests"
    pages = {name: json.loads(text) for page in maps for name, text in page["data"].items()}
    assert pages == PAGES, "`scripts/docs` updates the manifests"
    assert all(page["metadata"]["labels"]["grafana_dashboard"] == "1" for page in maps)


def test_a_client_side_apply_can_store_every_dashboard():
    for obj in read_all((KUBERNETES / "monitoring" / "dashboards.yaml").read_text()):
        stored = json.dumps(obj, separators=(",", ":"), ensure_ascii=False)
        assert len(stored.encode()) < MOST_APPLIED, obj["metadata"]["name"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("changed", [{}, {"expr": "up ==="}, {"for": "soon"}])
def test_the_operators_webhook_accepts_every_rule_and_notices_a_wrong_one(tmp_path, changed):
    """As its admission webhook does: a PrometheusRule's spec as a rule file, of at most 512 KiB.

    It parses the file with rulefmt.Parse, as promtool does (prometheus-operator, ValidateRule).
    """
    refused = []
    for rule in read_all((KUBERNETES / "monitoring" / "rules.yaml").read_text()):
        spec = rule["spec"]
        spec["groups"][0]["rules"][0] |= changed
        path = tmp_path / f"{rule['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        assert path.stat().st_size < 512 * 1024
        # Without lints, which are no errors for the webhook.
        command = ["promtool", "check", "rules", "--lint=none", path]
        refused.append(subprocess.run(command, capture_output=True, check=False).returncode != 0)

    assert len(refused) == len(RULES)
    assert all(refused) == any(refused) == bool(changed)


def test_the_mixin_is_the_shipped_rules_and_dashboards():
    parts = "[mixin.prometheusAlerts, mixin.prometheusRules, mixin.grafanaDashboards]"
    text = f"local mixin = import 'mixin.libsonnet'; {parts}"
    *rules, pages = json.loads(_gojsonnet.evaluate_snippet("mixin", text, jpathdir=[str(ROOT)]))
    assert (rules, pages) == (RULES, PAGES)


def test_prometheus_accepts_exactly_as_many_series_as_a_sidecar_can_have():
    """One more would lose the whole scrape; a higher limit would promise too little."""
    limit = PROMISED + Limits().passthrough_series
    monitor = (KUBERNETES / "monitoring" / "podmonitor.yaml").read_text()
    chart = (CHART / "templates" / "scrape.yaml").read_text()
    assert (
        re.findall(r"sampleLimit: (\d+)", monitor)
        == re.findall(r"\$limit := (\d+)", chart)
        == [str(limit)]
    )
    assert f"{PROMISED:,} series" in monitor
