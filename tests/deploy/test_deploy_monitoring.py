"""The objects generated from alerts/ and dashboards/ are up to date, and nothing is lost."""

import json
import re

import pytest
import yaml

from sidecar.export.metrics import MOST_SERIES
from sidecar.settings.groups import Limits
from tests.deploy.deploy_tools import KUBERNETES, ROOT, generated
from tests.deploy.kustomize_tools import read, read_all

MADE = ("rules.yaml", "dashboards.yaml")


@pytest.mark.parametrize("name", MADE)
def test_what_is_committed_is_what_the_generator_makes(name, tmp_path):
    done = generated(tmp_path)
    assert done.returncode == 0, done.stderr
    committed = KUBERNETES / "monitoring" / name
    assert (tmp_path / name).read_text() == committed.read_text(), "run scripts/manifests"


def test_every_rule_file_is_there_group_for_group():
    expected = [
        content["groups"] for path in sorted((ROOT / "alerts").glob("*.yaml")) if "groups" in (content := read(path))
    ]
    assert expected
    assert [
        one["spec"]["groups"] for one in read_all((KUBERNETES / "monitoring" / "rules.yaml").read_text())
    ] == expected


def test_every_dashboard_is_there_to_the_byte_under_the_label_that_grafana_looks_for():
    made = read_all((KUBERNETES / "monitoring" / "dashboards.yaml").read_text())
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


def test_without_dashboards_the_generated_files_are_still_ones_that_kustomize_reads(sources):
    (sources / "dashboards" / "one.json").unlink()
    assert generated(sources / "out", root=sources).returncode == 0
    assert read_all((sources / "out" / "dashboards.yaml").read_text()) == []


@pytest.mark.parametrize(
    ("content", "problem"), [("{", "not JSON"), (json.dumps("x" * 1024 * 1024), "larger than a ConfigMap")]
)
def test_a_dashboard_that_kubernetes_or_grafana_would_refuse_is_refused(sources, content, problem):
    (sources / "dashboards" / "one.json").write_text(content)
    done = generated(sources / "out", root=sources)
    assert done.returncode == 1
    assert problem in done.stderr
    assert not list((sources / "out").iterdir())


def test_prometheus_accepts_as_many_series_as_a_sidecar_can_have_and_no_more():
    limit = MOST_SERIES + Limits().passthrough_series
    paths = [path for path in (ROOT / "deploy").rglob("*.y*ml") if "sampleLimit" in path.read_text()]
    assert len(paths) >= 2
    for path in paths:
        assert re.findall(r"sampleLimit: (\d+)", path.read_text()) == [str(limit)], path
        assert f"{MOST_SERIES:,} series" in path.read_text()
