"""The reference agrees with the settings, and something reads each of them."""

import ast
import re
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest

from scripts.settings_reference import settings_reference
from sidecar.settings import Settings, load_settings
from sidecar.settings.groups import groups, keys, variable

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| `(SPECDEC_[^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(settings_reference())


def test_the_page_has_a_row_for_every_setting_and_is_up_to_date():
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_reference(), "docs/settings.md is out of date: run `make docs`"
    assert [(row[0], row[1]) for row in sorted(ROWS)] == [
        (key, variable(key)) for key in sorted(keys())
    ]


@pytest.mark.parametrize(("key", "name", "kind", "default", "meaning"), ROWS)
def test_a_variable_set_to_its_documented_default_changes_nothing(
    key, name, kind, default, meaning
):
    if default == "not set":
        assert attrgetter(key)(Settings()) is None
    else:
        assert load_settings(None, {name: default.strip("`")}) == Settings()


OWN = ROOT / "sidecar" / "settings"


def attributes(path):
    """The attributes that a module reads, and the groups that it names or reads."""
    tree = ast.parse(path.read_text())
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return read, read | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@cache
def modules():
    """The attributes of each module of the program; it takes a second to read them."""
    return [
        attributes(path)
        for package in ("sidecar", "specdec_tools")
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(OWN)
    ]


@cache
def derived():
    """What the models of the settings read of themselves."""
    return {name for file in ("baselines.py", "groups.py") for name in attributes(OWN / file)[0]}


RULES = "".join(path.read_text() for path in (ROOT / "alerts").glob("*.yaml"))
IN_RULES = set(re.findall(r'specdec_threshold\{name="(\w+)"', RULES))


def is_read(key):
    group, _, name = key.rpartition(".")
    if not group:
        return any(name in read for read, _ in modules())
    names = {group, groups()[group].__name__}
    return any(name in read and names & known for read, known in modules())


@pytest.mark.parametrize("key", keys())
def test_a_setting_is_read_by_the_program_or_a_rule(key):
    by_rule = key.startswith("thresholds.") and key.partition(".")[2] in IN_RULES
    where = (
        "no module reads it as an attribute of its group, and no rule; model_dump() does not count"
    )
    assert is_read(key) or key in derived() or by_rule, f"{key}: {where}"
