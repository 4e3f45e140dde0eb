"""Every setting is read by something."""

import ast
import re
from pathlib import Path

import pytest

from sidecar.settings.groups import groups, keys

ROOT = Path(__file__).parents[2]
OWN = ROOT / "sidecar" / "settings"


def attributes(path):
    """The attributes that a module reads, and the groups that it names or reads."""
    tree = ast.parse(path.read_text())
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return read, read | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


MODULES = [attributes(path) for path in (ROOT / "sidecar").rglob("*.py") if not path.is_relative_to(OWN)]
DERIVED, _ = attributes(OWN / "groups.py")  # what properties and methods of the models read
IN_RULES = set(
    re.findall(
        r'specdec_threshold\{name="(\w+)"', "".join(path.read_text() for path in (ROOT / "alerts").glob("*.yaml"))
    )
)


def is_read(key):
    group, _, name = key.rpartition(".")
    if not group:
        return any(name in read for read, _ in MODULES)
    names = {group, groups()[group].__name__}
    return any(name in read and names & known for read, known in MODULES)


@pytest.mark.parametrize("key", keys())
def test_a_setting_is_read_by_the_program_or_a_rule(key):
    by_rule = key.startswith("thresholds.") and key.partition(".")[2] in IN_RULES
    assert is_read(key) or key in DERIVED or by_rule
