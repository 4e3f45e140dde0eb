"""What scripts/docs generates, and the bound on series. docs-check compares what is committed."""

import re
import subprocess
import sys

from sidecar.export.metrics import MOST_SERIES
from sidecar.settings.groups import Limits
from tests.deploy.deploy_tools import CHART, KUBERNETES, ROOT, read, read_all


def test_every_rule_file_and_every_dashboard_is_there(tmp_path):
    command = [sys.executable, "scripts/manifests_generate.py", tmp_path]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    rules = [read(path)["groups"] for path in sorted((ROOT / "alerts").glob("*.yaml"))]
    assert rules
    assert [one["spec"]["groups"] for one in read_all((tmp_path / "rules.yaml").read_text())] == rules
    made = read_all((tmp_path / "dashboards.yaml").read_text())
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in made)
    found = {name: text for one in made for name, text in one["data"].items()}
    assert found == {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}


def test_prometheus_accepts_as_many_series_as_a_sidecar_can_have_and_no_more():
    limit = MOST_SERIES + Limits().passthrough_series
    monitor = (KUBERNETES / "monitoring" / "podmonitor.yaml").read_text()
    chart = (CHART / "templates" / "scrape.yaml").read_text()
    assert re.findall(r"sampleLimit: (\d+)", monitor) == re.findall(r"\$limit := (\d+)", chart) == [str(limit)]
    assert f"{MOST_SERIES:,} series" in monitor


def test_the_readmes_table_has_each_value_with_its_comment(tmp_path):
    values = "# One\n# and two.\na: 1\n\n# A group.\ng:\n  # Inner.\n  b: [x]\n  c: {}\n"
    (tmp_path / "values.yaml").write_text(f"{values}# One value.\nd:\n  e: {{f: 2}}\nh:\n  i: ''\n")
    [begin, end] = re.findall("<!-- .* -->\n", (CHART / "README.md").read_text())
    (tmp_path / "README.md").write_text(f"before\n{begin}old\n{end}after\n")
    subprocess.run([sys.executable, ROOT / "scripts" / "readme_table.py", tmp_path], check=True)
    rows = """
| value | default | meaning |
| --- | --- | --- |
| `a` | `1` | One and two. |
| **`g`** | | A group. |
| `g.b` | `["x"]` | Inner. |
| `g.c` | `{}` |  |
| `d` | `{"e": {"f": 2}}` | One value. |
| `h.i` | `""` |  |

"""
    assert (tmp_path / "README.md").read_text() == f"before\n{begin}{rows}{end}after\n"
