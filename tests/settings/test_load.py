"""The sources of settings and their precedence."""

from pathlib import Path

import pytest
import yaml

from sidecar.settings import Settings, load_settings
from sidecar.settings.addresses import Address
from sidecar.settings.field_types import notation
from sidecar.settings.groups import Target
from sidecar.settings.load import is_service_link
from sidecar.settings.tree import leaves

EVERY = Path(__file__).with_name("every.yaml")
CERTIFICATES = {"vllm_ca_file", "web_config_file", "proxy.web_config_file", "traces.web_config_file"}


def value_of(settings, leaf):
    value = settings
    for name in leaf.path:
        value = getattr(value, name)
    return value


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(config):
    path = config("scrape_interval: 2s\nlimits: {labels: 10, series: 200}")
    settings = load_settings(path, {"SPECDEC_SCRAPE_INTERVAL": "500ms", "SPECDEC_LIMITS__LABELS": "20"})
    assert settings.scrape_interval == 0.5
    assert (settings.limits.labels, settings.limits.series, settings.limits.engines) == (20, 200, 8)


def test_the_process_environment_is_not_read(monkeypatch):
    monkeypatch.setenv("SPECDEC_SCRAPE_INTERVAL", "7s")
    monkeypatch.setenv("SPECDEC_LIMITS__LABELS", "7")
    monkeypatch.setenv("SPECDEC_UNHEARD_OF", "7")
    assert load_settings(None, {}) == Settings()
    assert Settings().scrape_interval == 1
    assert Settings().limits.labels == 64


def test_nothing_given_is_all_defaults(config):
    assert load_settings(None, {"PATH": "/bin"}) == load_settings(config(""), {}) == Settings()


def test_variables_of_kubernetes_services_are_left_alone():
    address = "10.96.0.7"
    environ = {}
    for service in ("SPECDEC", "SPECDEC_SIDECAR", "SPECDEC_LISTEN", "SPECDEC__A"):
        environ |= {
            f"{service}_SERVICE_HOST": address,
            f"{service}_SERVICE_PORT": "9911",
            f"{service}_SERVICE_PORT_METRICS": "9911",
            f"{service}_SERVICE_PORT_HTTP_PROXY": "8080",
            f"{service}_PORT": f"tcp://{address}:9911",
            f"{service}_PORT_9911_TCP": f"tcp://{address}:9911",
            f"{service}_PORT_9911_TCP_PROTO": "tcp",
            f"{service}_PORT_9911_TCP_PORT": "9911",
            f"{service}_PORT_9911_TCP_ADDR": address,
            f"{service}_PORT_53_UDP": f"udp://{address}:53",
        }
    assert load_settings(None, environ) == Settings()


def test_no_setting_looks_like_a_service_of_kubernetes():
    values = ("tcp://10.0.0.1:9911", "9911")
    assert not [leaf.variable for leaf in leaves() for value in values if is_service_link(leaf.variable, value)]


def test_an_empty_variable_and_an_empty_key_count_as_not_set(config):
    path = config("listen: host:1\nscrape_interval:\nlimits:\nlog: {level: }\nbaseline:\ntargets:")
    settings = load_settings(path, {"SPECDEC_LISTEN": "", "SPECDEC_VLLM_URL": " "})
    assert settings == Settings(listen=Address("host", 1))
    assert settings.model_fields_set == {"listen", "log"}


def test_lists_and_mappings_from_the_environment():
    environ = {
        "SPECDEC_TARGETS": '[{"name": "a", "vllm_url": "http://h:1/"}, {"name": "b", "vllm_url": "http://h:2"}]',
        "SPECDEC_TEMPERATURE_BUCKETS": "0, 0.5,1",
        "SPECDEC_BASELINE": '{"Org/Model": {"itl": {"p50": "20ms"}}}',
    }
    settings = load_settings(None, environ)
    assert settings.vllms == (Target(name="a", vllm_url="http://h:1"), Target(name="b", vllm_url="http://h:2"))
    assert settings.temperature_buckets == (0, 0.5, 1)
    assert settings.baselines == {"Org/Model": {"itl": {0.5: 0.02}}}
    as_json = {"SPECDEC_TEMPERATURE_BUCKETS": "[0, 0.5, 1.0]"}
    assert load_settings(None, as_json).temperature_buckets == (0, 0.5, 1)


def test_a_list_from_the_environment_replaces_the_files(config):
    path = config("baseline: {a: {itl: {p50: 1}}}")
    assert load_settings(path, {"SPECDEC_BASELINE": '{"b": {}}'}).baseline.keys() == {"b"}


def test_an_invalid_group_in_the_file_is_reported_despite_the_environment(config, messages):
    assert messages(config("limits: 5"), {"SPECDEC_LIMITS__LABELS": "10"}) == [
        "limits (in config.yaml)=5: expected mapping"
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a: [1, 2", "line 1 is not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "log:\n  level: info\n\tformat: json",
            ("line 3 is not valid YAML: found character '\\t' that cannot start any token"),
        ),
        ("log:\n  level: info\n  level: debug", "line 3 is not valid YAML: duplicate key 'level'"),
        ("listen: a:1\nlog: {}\nlisten: b:2", "line 3 is not valid YAML: duplicate key 'listen'"),
        (
            "a: !!python/object/apply:os.getcwd []",
            (
                "line 1 is not valid YAML: could not determine a constructor for the "
                "tag 'tag:yaml.org,2002:python/object/apply:os.getcwd'"
            ),
        ),
        ("a: 1\n---\nb: 2", "line 2 is not valid YAML: but found another document"),
        ("? [a]\n: b", "line 1 is not valid YAML: found unhashable key"),
        ("a: \x00", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        (b"a: 1\nb: \xff", "line 2 is not UTF-8"),
        ("- listen", "not a mapping; expected one setting per line, as key: value"),
        ("listen", "not a mapping; expected one setting per line, as key: value"),
        ("#" * (1024 * 1024 + 1), "larger than 1 MiB; not a settings file"),
    ],
)
def test_a_file_that_is_not_a_settings_file(config, messages, content, fault):
    path = config(content)
    assert messages(path, {}) == [f"config.yaml: {fault}"]


def test_a_file_of_a_mebibyte_is_read(config):
    assert load_settings(config("#" * (1024 * 1024)), {}) == Settings()


def test_a_file_that_cannot_be_read(tmp_path, messages):
    missing = tmp_path / "gone.yaml"
    assert messages(missing, {}) == [f"{missing}: cannot be read: No such file or directory"]
    assert messages(tmp_path, {}) == [f"{tmp_path}: cannot be read: Is a directory"]


def test_a_merge_key_may_be_overridden(config):
    path = config("proxy: &p {listen: 'a:1', max_connections: 5}\ntraces: {listen: 'b:1'}\n")
    assert load_settings(path, {}).proxy.max_connections == 5
    path = config("baseline:\n  a: &a {itl: {p50: 1}, e2e: {p50: 2}}\n  b: {<<: *a, e2e: {p50: 3}}\n")
    assert load_settings(path, {}).baseline["b"] == {"itl": {"p50": 1}, "e2e": {"p50": 3}}


def test_a_baseline_file_is_merged_in(config):
    config("baseline: {m: {ttft: {p50: 100ms, p99: 2}}}", "base.yaml")
    settings = load_settings(config("baseline_file: base.yaml"), {})
    assert settings.baselines == {"m": {"ttft": {0.5: 0.1, 0.99: 2}}}
    assert settings.baseline_file == Path("base.yaml")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            "baseline: {m: {ttft: {p50: x}}}",
            (
                "baseline.m.ttft.p50 (in base.yaml)=x: input should be a valid number, "
                "unable to parse string as a number"
            ),
        ),
        (
            "baseline: {m: {tttf: {}}}",
            "baseline.m (in base.yaml), key tttf: input should be 'ttft', 'itl', 'tpot', 'e2e' or 'queue'",
        ),
        (
            "m: {ttft: {p50: 1}}",
            (
                "SPECDEC_BASELINE_FILE=base.yaml: expected a YAML file with only the keys "
                "baseline and plain_steps at its top"
            ),
        ),
        (
            "baseline: {}\nbaseline: {}",
            ("SPECDEC_BASELINE_FILE=base.yaml: line 2 is not valid YAML: duplicate key 'baseline'"),
        ),
    ],
)
def test_a_baseline_file_that_cannot_be_used(config, messages, content, fault):
    config(content, "base.yaml")
    assert messages(None, {"SPECDEC_BASELINE_FILE": "base.yaml"}) == [fault]


def test_a_missing_baseline_file(config, messages):
    assert messages(config("baseline_file: gone.yaml"), {}) == [
        "baseline_file (in config.yaml)=gone.yaml: cannot be read: No such file or directory"
    ]


def test_a_baseline_in_two_places(config, messages):
    config("baseline: {}", "base.yaml")
    assert messages(config("baseline: {m: {}}"), {"SPECDEC_BASELINE_FILE": "base.yaml"}) == [
        "SPECDEC_BASELINE_FILE=base.yaml, baseline (in config.yaml): mutually exclusive; keep one of them"
    ]


def test_the_example_holds_every_setting_and_none_at_its_default():
    settings = load_settings(EVERY, {})
    excluded = {"vllm_url", "baseline_file", *CERTIFICATES}
    same = {leaf.key for leaf in leaves() if value_of(settings, leaf) == value_of(Settings(), leaf)}
    assert same == excluded


def test_settings_survive_a_round_trip_through_yaml(config):
    settings = load_settings(EVERY, {})
    text = yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True, exclude_none=True))
    assert load_settings(config(text), {}) == settings


def test_every_setting_can_come_from_the_environment():
    """Each of the example's values has the same effect as a variable and in the file."""
    settings = load_settings(EVERY, {})
    environ = {
        leaf.variable: notation(leaf.field).render(value_of(settings, leaf))
        for leaf in leaves()
        if leaf.key not in {"vllm_url", "baseline_file", *CERTIFICATES}
    }
    assert load_settings(None, environ) == settings
