"""The reference agrees with the settings."""

import re
from pathlib import Path

import pytest

from sidecar.settings import Settings, load_settings
from sidecar.settings.groups import keys, variable
from sidecar.settings.reference import settings_reference

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| `(SPECDEC_[^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(settings_reference())


def test_the_file_is_what_the_settings_say():
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_reference(), "docs/settings.md is out of date: run `make docs`"


def test_every_setting_has_a_row():
    assert [(row[0], row[1]) for row in sorted(ROWS)] == [(key, variable(key)) for key in sorted(keys())]


@pytest.mark.parametrize(("key", "name", "kind", "default", "meaning"), ROWS)
def test_a_documented_default_is_the_default(key, name, kind, default, meaning):
    """Setting a variable to its documented default changes nothing."""
    if default == "not set":
        value = Settings()
        for part in key.split("."):
            value = getattr(value, part)
        assert value is None
    else:
        assert load_settings(None, {name: default.strip("`")}) == Settings()


def test_the_contract_keys_have_their_defaults():
    """Written by hand: what dashboards, charts and users rely on."""
    defaults = {key: default.strip("`") for key, _, _, default, _ in ROWS}
    expected = {
        "vllm_url": "http://127.0.0.1:8000",
        "listen": "0.0.0.0:9911",
        "scrape_interval": "1s",
        "scrape_timeout": "5s",
        "scrape_max_interval": "1m",
        "latency_window": "5m",
        "kv_peak_window": "1m",
        "history": "15m",
        "temperature_buckets": "[0.0, 0.3, 0.5, 0.7, 1.0]",
        "limits.page_bytes": "8388608",
        "limits.series": "10000",
        "limits.engines": "8",
        "thresholds.acceptance_net_negative": "0.5",
        "thresholds.acceptance_break_even": "0.65",
        "thresholds.acceptance_p10": "0.5",
        "thresholds.acceptance_regression": "0.05",
        "thresholds.acceptance_fewer_tokens": "0.4",
        "thresholds.acceptance_more_tokens": "0.8",
        "thresholds.coverage": "0.98",
        "plugin.socket": "/run/specdec/plugin.sock",
        "plugin.adapters": "false",
    }
    assert {key: defaults[key] for key in expected} == expected
