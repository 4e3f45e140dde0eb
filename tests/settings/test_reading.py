"""Where settings come from, and which source wins."""

import json
from operator import attrgetter
from pathlib import Path

import pytest

from sidecar.settings import Settings, load_settings
from sidecar.settings.baselines import PlainLatency, PlainStepTimes
from sidecar.settings.field_types import Address
from sidecar.settings.groups import keys, variable
from sidecar.settings.reading import is_service_link

EVERY = Path(__file__).with_name("every.yaml")
CODE, TAG = "python/object/apply:os.getcwd", "could not determine a constructor for the tag"
MAPPING = "expected at most 1 MiB, with one setting per line, as key: value"
DURATION = "expected duration, a number of seconds or a number and ms, s, m or h"
MEASURE = "`specdec-sidecar baseline --out FILE` writes a baseline"
FILES = {
    "vllm_ca_file",
    "vllm_cert_file",
    "vllm_key_file",
    "web_config_file",
    "baseline_file",
}


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(config):
    path = config("scrape_interval: 2s\nlimits: {positions: 10, series: 200}")
    settings = load_settings(
        path, {"SPECDEC_SCRAPE_INTERVAL": "500ms", "SPECDEC_LIMITS__POSITIONS": "20"}
    )
    assert settings.scrape_interval == 0.5
    assert (settings.limits.positions, settings.limits.series, settings.limits.engines) == (
        20,
        200,
        8,
    )


def test_without_a_source_all_settings_have_their_defaults(config, monkeypatch):
    monkeypatch.setenv("SPECDEC_SCRAPE_INTERVAL", "7s")  # the process's own environment is not read
    assert load_settings(None, {"PATH": "/bin"}) == load_settings(config(""), {}) == Settings()
    assert Settings().scrape_interval == 1


def test_variables_that_kubernetes_sets_for_services_are_ignored():
    """A Service named "specdec" must not keep the sidecar from starting."""
    environ = {}
    for service in ("SPECDEC", "SPECDEC_SIDECAR", "SPECDEC_LISTEN", "SPECDEC__A"):
        port = f"{service}_PORT_9911_TCP"
        environ |= {f"{service}_SERVICE_HOST": "10.96.0.7", f"{service}_SERVICE_PORT": "9911"}
        environ |= {
            f"{service}_SERVICE_PORT_HTTP_PROXY": "8080",
            f"{service}_PORT": "tcp://10.96.0.7:9911",
        }
        environ |= {port: "tcp://10.96.0.7:9911", f"{port}_PROTO": "tcp"}
        environ |= {f"{port}_PORT": "9911", f"{port}_ADDR": "10.96.0.7"}
    assert load_settings(None, environ) == Settings()
    values = ("tcp://10.0.0.1:9911", "9911")
    assert not [key for key in keys() for value in values if is_service_link(variable(key), value)]


def test_an_empty_variable_and_an_empty_key_count_as_not_set(config):
    """As templates leave them behind."""
    path = config("listen: host:1\nscrape_interval:\nlimits:\nlog: {level: }\nbaseline:")
    settings = load_settings(path, {"SPECDEC_LISTEN": "", "SPECDEC_VLLM_URL": " "})
    assert settings == Settings(listen=Address("host", 1))
    assert settings.model_fields_set == {"listen", "log"}


def test_a_mapping_from_the_environment_replaces_that_of_the_file(config):
    """Two half mappings would be a baseline that nobody measured."""
    path = config("baseline: {a: {itl: {p50: 1}}}")
    given = {"SPECDEC_BASELINE": '{"b": {"itl": {"p50": "20ms"}}}'}
    assert load_settings(path, given).baseline == {"b": {"itl": {"p50": 0.02}}}


@pytest.mark.parametrize("text", ["0, 0.5,1", "[0, 0.5, 1.0]"])
def test_bucket_edges_are_written_with_or_without_brackets(text):
    assert load_settings(None, {"SPECDEC_TEMPERATURE_BUCKETS": text}).temperature_buckets == (
        0,
        0.5,
        1,
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: [1, 2", "line 1 is not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("log:\n  level: info\n  level: debug", "line 3 is not valid YAML: duplicate key 'level'"),
        ("listen: a:1\nlog: {}\nlisten: b:2", "line 3 is not valid YAML: duplicate key 'listen'"),
        (f"a: !!{CODE} []", f"line 1 is not valid YAML: {TAG} 'tag:yaml.org,2002:{CODE}'"),
        ("? [a]\n: b", "line 1 is not valid YAML: found unhashable key"),
        ("a: \x00", "not valid YAML in UTF-8"),
        ("[" * 2000, "not valid YAML in UTF-8"),
        (b"a: 1\nb: \xff", "not valid YAML in UTF-8"),
        ("- listen", MAPPING),
        ("#" * (1024 * 1024 + 1), MAPPING),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_refused_with_the_line(
    config, messages, content, problem
):
    assert messages(config(content), {}) == [f"config.yaml: {problem}"]


def test_a_file_that_cannot_be_read_is_named(tmp_path, messages):
    missing = tmp_path / "gone.yaml"
    assert messages(missing, {}) == [f"{missing}: cannot be read: No such file or directory"]
    assert messages(tmp_path, {}) == [f"{tmp_path}: cannot be read: Is a directory"]


def test_yaml_anchors_and_merge_keys_work(config):
    path = config(
        "baseline:\n  a: &a {itl: {p50: 1}, e2e: {p50: 2}}\n  b: {<<: *a, e2e: {p50: 3}}\n"
    )
    assert load_settings(path, {}).baseline["b"] == {"itl": {"p50": 1}, "e2e": {"p50": 3}}


def test_a_baseline_file_takes_the_place_of_a_baseline(config):
    """Of models that it does not have, nothing is known."""
    steps = "plain_steps: {m: {running: [1], seconds: [0.01], context: 100, measured: }}"
    config(f"baseline: {{m: {{ttft: {{p50: 100ms, p99: 2}}}}}}\n{steps}", "base.yaml")
    measured = load_settings(config("baseline_file: base.yaml"), {}).measured
    assert measured.latencies("m") == {"ttft": PlainLatency({0.5: 0.1, 0.99: 2})}
    assert measured.latencies("n") == {}
    assert measured.plain_steps == {
        "m": PlainStepTimes(running=(1.0,), seconds=(0.01,), context=100.0)
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("baseline: {m: {ttft: {p50: x}}}", f".baseline.m.ttft.p50=x: {DURATION}"),
        ("baseline: {}\nmodel: {ttft: {p50: 1}}", ".model: unknown setting; correct or remove it"),
        (
            "baseline: {}\nbaseline: {}",
            f"=base.yaml: line 2 is not valid YAML: duplicate key 'baseline'; {MEASURE}",
        ),
        ("model: m\nport: 8000\nmax-model-len: 8192", f"=base.yaml: not a baseline; {MEASURE}"),
        ('{"format": 5, "model": "m", "levels": []}', f"=base.yaml: not a baseline; {MEASURE}"),
    ],
)
def test_the_message_about_an_invalid_baseline_file_names_the_key_in_it(
    config, messages, content, problem
):
    config(content, "base.yaml")
    assert messages(None, {"SPECDEC_BASELINE_FILE": "base.yaml"}) == [
        f"SPECDEC_BASELINE_FILE{problem}"
    ]


def test_every_yaml_has_every_setting_that_is_neither_a_number_nor_a_flag():
    """Numbers and flags are read alike, so a new one needs no example.

    Other types need their own way to be written.
    """
    settings, default = load_settings(EVERY, {}), Settings()
    same = {key for key in keys() if attrgetter(key)(settings) == attrgetter(key)(default)}
    assert {key for key in same if not isinstance(attrgetter(key)(default), int | float)} == FILES


def test_every_setting_can_come_from_the_environment():
    """Each of the example's values has the same effect as a variable and in the file."""
    settings = load_settings(EVERY, {})
    values = settings.model_dump(mode="json")
    environ = {}
    for key in set(keys()) - FILES:
        group, _, name = key.rpartition(".")
        value = (values[group] if group else values)[name]
        environ[variable(key)] = value if isinstance(value, str) else json.dumps(value)
    assert load_settings(None, environ) == settings


@pytest.mark.parametrize("text", ["off", "0f1e2d3c4b5a6978"])
def test_the_variable_in_which_the_plug_in_hands_down_its_server_s_id_is_no_setting(text):
    """A sidecar in vLLM's own container has it, too."""
    assert load_settings(None, {"SPECDEC_SERVER_ID": text}) == load_settings(None, {})
