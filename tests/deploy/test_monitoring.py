"""The manifests of the monitoring.

The rules and dashboards that scripts/docs generates, and the bound on series.
"""

import json
import re

import _gojsonnet

from sidecar.analysis.series import PROMISED
from sidecar.settings.groups import Limits
from tests.deploy.deploy_tools import CHART, KUBERNETES, PAGES, ROOT, RULES, read_all


def test_the_manifests_have_every_rule_and_every_dashboard():
    rules, maps = (
        read_all((KUBERNETES / "monitoring" / f"{name}.yaml").read_text())
        for name in ("rules", "dashboards")
    )
    assert [rule["spec"] for rule in rules] == RULES, "`scripts/docs` updates the manifests"
    pages = {name: json.loads(text) for page in maps for name, text in page["data"].items()}
    assert pages == PAGES, "`scripts/docs` updates the manifests"
    assert all(page["metadata"]["labels"]["grafana_dashboard"] == "1" for page in maps)


def test_the_mixin_is_the_shipped_rules_and_dashboards():
    parts = "[mixin.prometheusAlerts, mixin.prometheusRules, mixin.grafanaDashboards]"
    text = f"local mixin = import 'mixin.libsonnet'; {parts}"
    *rules, pages = json.loads(_gojsonnet.evaluate_snippet("mixin", text, jpathdir=[str(ROOT)]))
    assert (rules, pages) == (RULES, PAGES)


def test_prometheus_accepts_exactly_as_many_series_as_a_sidecar_can_have():
    limit = PROMISED + Limits().passthrough_series
    monitor = (KUBERNETES / "monitoring" / "podmonitor.yaml").read_text()
    chart = (CHART / "templates" / "scrape.yaml").read_text()
    assert (
        re.findall(r"sampleLimit: (\d+)", monitor)
        == re.findall(r"\$limit := (\d+)", chart)
        == [str(limit)]
    )
    assert f"{PROMISED:,} series" in monitor
