"""The reference agrees with the settings."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from scripts.settings_reference import settings_reference
from sidecar.settings import Settings, load_settings
from sidecar.settings.groups import keys, variable

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| `(SPECDEC_[^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(settings_reference())


def test_the_page_has_a_row_for_every_setting_and_is_up_to_date():
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_reference(), "docs/settings.md is out of date: run `make docs`"
    assert [(row[0], row[1]) for row in sorted(ROWS)] == [(key, variable(key)) for key in sorted(keys())]


@pytest.mark.parametrize(("key", "name", "kind", "default", "meaning"), ROWS)
def test_a_variable_set_to_its_documented_default_changes_nothing(key, name, kind, default, meaning):
    if default == "not set":
        assert attrgetter(key)(Settings()) is None
    else:
        assert load_settings(None, {name: default.strip("`")}) == Settings()
