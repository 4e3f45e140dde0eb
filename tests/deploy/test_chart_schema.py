"""The schema of the chart's settings, which Helm checks before anything is rolled out."""

import json

import jsonschema
import pytest
import yaml

from scripts.chart_schema import settings_schema
from sidecar.errors import SettingsError
from sidecar.settings import Settings, load_settings
from sidecar.settings.groups import keys
from tests.deploy.deploy_tools import CHART, ROOT, read

WRITTEN = json.loads((CHART / "values.schema.json").read_text())
SCHEMA = WRITTEN["properties"]["settings"] | {"definitions": WRITTEN["definitions"]}
EVERY = read(ROOT / "tests" / "settings" / "every.yaml")

WRONG = [
    "thresolds: {}",
    "thresholds: {acceptance_netnegative: 0.4}",
    "thresholds: {acceptance_net_negative: 45}",
    "thresholds: {acceptance_net_negative: much}",
    "thresholds: {acceptance_net_negative: '1.5'}",
    "thresholds: {slowdown: 1.x}",
    "thresholds: {min_requests: 2.5}",
    "thresholds: 0.5",
    "scrape_interval: fast",
    "scrape_interval: 301",
    "scrape_interval: 1d",
    "vllm_url: 127.0.0.1:8000",
    "listen: 9911",
    "listen: ':9911'",
    "reexport: 2",
    "temperature_buckets: [0, hot]",
    "temperature_buckets: []",
    "log: {level: trace}",
    "plugin: {socket: plugin.sock}",
    "alerting: {alertmanagers: 'http://alertmanager:9093'}",
    "alerting: {alertmanagers: [alertmanager:9093]}",
    "alerting: {labels: {0x: y}}",
    "alerting: {labels: {team: [5]}}",
    "baseline: {m: {tttf: {p50: 1}}}",
    "baseline: {m: {ttft: {p51: 1}}}",
    "plain_steps: {m: {running: [1]}}",
    "plain_cache: {m: {hit_ratio: 2}}",
]


def accepts(settings):
    return jsonschema.Draft7Validator(SCHEMA).is_valid(settings)


def test_it_is_that_of_the_models():
    assert WRITTEN["properties"]["settings"] == settings_schema(), "run `scripts/docs`"


def test_it_knows_every_setting():
    properties = SCHEMA["properties"]
    for key in keys():
        group, _, name = key.rpartition(".")
        assert name in (properties[group]["properties"] if group else properties), key


@pytest.mark.parametrize("key", list(EVERY))
def test_it_accepts_each_setting_as_a_file_has_it(key):
    value = json.loads(json.dumps(EVERY[key], default=str))

    assert accepts({key: value})
    assert accepts({key: None})


@pytest.mark.parametrize(
    "text",
    [
        "thresholds: {acceptance_net_negative: '0.45', slowdown: '1.5'}",
        "thresholds: {coverage: '1', kv_cache_usage: '.9'}",
        "temperature_buckets: ['0', '0.5']",
        "alerting: {labels: {team: 5}}",
    ],
)
def test_it_accepts_numbers_as_helms_own_option_writes_them(text):
    """`--set-string` and values from a secret store make texts of them."""
    assert accepts(yaml.safe_load(text))


def test_it_accepts_every_default():
    defaults = Settings().model_dump(mode="json")

    assert accepts(defaults)


@pytest.mark.parametrize("text", WRONG)
def test_it_refuses_what_the_sidecar_would_refuse(text, tmp_path):
    """At `helm install` already, not when the pod starts."""
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(SettingsError):
        load_settings(tmp_path / "settings.yaml", {})

    assert not accepts(yaml.safe_load(text))
