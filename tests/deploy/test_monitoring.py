"""The objects generated from alerts/ and dashboards/, and the bound on series. docs-check compares the committed."""

import re
import subprocess
import sys

import pytest
import yaml

from sidecar.export.metrics import MOST_SERIES
from sidecar.settings.groups import Limits
from tests.deploy.deploy_tools import KUBERNETES, ROOT
from tests.deploy.kustomize_tools import read, read_all


def generated(folder, *, root):
    """Runs the generator of manifests on ``root``'s alerts and dashboards."""
    command = [sys.executable, str(ROOT / "scripts" / "manifests_generate.py"), str(folder)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_every_rule_file_and_every_dashboard_is_there(tmp_path):
    assert generated(tmp_path, root=ROOT).returncode == 0
    rules = [read(path)["groups"] for path in sorted((ROOT / "alerts").glob("*.yaml"))]
    assert rules
    assert [one["spec"]["groups"] for one in read_all((tmp_path / "rules.yaml").read_text())] == rules
    made = read_all((tmp_path / "dashboards.yaml").read_text())
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in made)
    found = {name: text for one in made for name, text in one["data"].items()}
    assert found == {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}


@pytest.fixture
def sources(tmp_path):
    """A repository's root with a rule file, the rules' unit tests beside it, and a dashboard."""
    root = tmp_path / "root"
    (root / "alerts").mkdir(parents=True)
    (root / "dashboards").mkdir()
    (root / "out").mkdir()
    rule = {"alert": "A", "expr": "a > 1\nand b", "annotations": {"d": "{{ $value }} … é"}}
    groups = [{"name": "g", "rules": [rule]}]
    (root / "alerts" / "my_rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (root / "alerts" / "tests.yaml").write_text("rule_files: [my_rules.yaml]\ntests: []\n")
    (root / "dashboards" / "one.json").write_text('{"title": "é",\n "uid": "x"}\n')
    return root


def test_a_rule_keeps_its_text_and_unit_tests_are_no_rules(sources):
    assert generated(sources / "out", root=sources).returncode == 0
    [one] = read_all((sources / "out" / "rules.yaml").read_text())
    assert one["metadata"]["name"] == "specdec-my-rules"
    assert one["spec"]["groups"] == read(sources / "alerts" / "my_rules.yaml")["groups"]
    [board] = read_all((sources / "out" / "dashboards.yaml").read_text())
    assert board["data"] == {"one.json": '{"title": "é",\n "uid": "x"}\n'}


def test_a_dashboard_that_grafana_would_refuse_is_refused(sources):
    (sources / "dashboards" / "one.json").write_text("{")
    done = generated(sources / "out", root=sources)
    assert (done.returncode, list((sources / "out").iterdir())) == (1, [])
    assert "not JSON" in done.stderr


def test_prometheus_accepts_as_many_series_as_a_sidecar_can_have_and_no_more():
    limit = MOST_SERIES + Limits().passthrough_series
    monitor = (KUBERNETES / "monitoring" / "podmonitor.yaml").read_text()
    chart = (ROOT / "deploy" / "helm" / "specdec-sidecar" / "templates" / "scrape.yaml").read_text()
    assert re.findall(r"sampleLimit: (\d+)", monitor) == re.findall(r"\$limit := (\d+)", chart) == [str(limit)]
    assert f"{MOST_SERIES:,} series" in monitor
