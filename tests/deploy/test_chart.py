"""The Helm chart's files, as far as they can be checked without Helm; test_helm.py renders it."""

import json
import re
import subprocess
import sys

import jsonschema
import pytest

from sidecar.settings.messages import REMOVED
from tests.deploy.deploy_tools import CHART, ROOT, read

SCHEMA = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))


def given(values):
    """The chart's values with others over them, as Helm merges them."""
    merged = read(CHART / "values.yaml")
    _merge(merged, values)
    return merged


def _merge(base, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


@pytest.mark.parametrize(
    "path", [CHART / "values.yaml", *(CHART / "ci").glob("*-values.yaml")], ids=lambda path: path.name
)
def test_the_schema_takes_the_defaults_and_the_values_of_ci(path):
    SCHEMA.validate(given(read(path)))


@pytest.mark.parametrize(
    "values",
    [
        {"plugn": {"enabled": True}},
        {"image": {"digest": "latest"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"vllm": {"port": "8000"}},
        {"vllm": {"speculativeConfig": {"method": "ngram"}}},
        {"vllm": {"speculativeConfig": "ngram"}},
        {"scrape": {"kind": "podmonitor"}},
        {"scrape": {"interval": "15"}},
        {"rules": {"enabled": "yes"}},
    ],
)
def test_the_schema_refuses_what_could_not_work(values):
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(given(values))


def test_the_chart_refuses_the_settings_that_the_sidecar_refuses():
    template = (CHART / "templates" / "_removed.tpl").read_text()
    [names] = [found for found in re.findall(r'range list ((?:"\w+" ?)+)', template) if "requests" in found]
    assert set(re.findall(r"\w+", names)) == set(REMOVED)
    [variables] = re.findall(r"\^SPECDEC_\(\((\S+?)\)__\.\*\|(\S+?)\)\$", template)
    assert {name.lower() for name in "|".join(variables).split("|")} == set(REMOVED)


def test_the_readmes_table_has_each_value_with_its_comment(tmp_path):
    values = "# One\n# and two.\na: 1\n\n# A group.\ng:\n  # Inner.\n  b: [x]\n  c: {}\n"
    (tmp_path / "values.yaml").write_text(f"{values}# One value.\nd:\n  e: {{f: 2}}\nh:\n  i: ''\n")
    [begin, end] = re.findall("<!-- .* -->\n", (CHART / "README.md").read_text())
    (tmp_path / "README.md").write_text(f"before\n{begin}old\n{end}after\n")
    command = [sys.executable, ROOT / "scripts" / "readme_table.py", tmp_path]
    subprocess.run(command, check=True, timeout=60)
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
