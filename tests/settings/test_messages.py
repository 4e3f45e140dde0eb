"""One invalid configuration per rule with its exact line, and properties of every line."""

import json

import pytest

URL = "expected http or https URL without query and fragment, such as http://HOST:PORT"
DURATION = "expected duration, a number of seconds or a number and ms, s, m or h"
ADDRESS = "expected host:port or [IPv6]:port; port 0 picks a free one"
EDGES = "expected list of 1 to 8 numbers from 0 up, strictly increasing, with at most two decimals"
NUMBER = "input should be a valid number, unable to parse string as a number"
MAPPING = "input should be a valid dictionary or instance of Limits"
BASELINE = 'mapping such as {"MODEL": {"ttft": {"p50": 0.2}}}'
ORDER = "the first must not be above the second"

VARIABLES = [
    ("VLLM_URL", "127.0.0.1:8000", URL),
    ("VLLM_URL", "ftp://host", URL),
    ("VLLM_URL", "http://", URL),
    ("VLLM_URL", "http://host:70000", URL),
    ("VLLM_URL", "http://host:0", URL),
    ("VLLM_URL", "http://ho st", URL),
    ("VLLM_URL", "http://[::1", URL),
    ("LISTEN", "9911", ADDRESS),
    ("LISTEN", ":9911", ADDRESS),
    ("LISTEN", "::1:9911", ADDRESS),
    ("LISTEN", "host:http", ADDRESS),
    ("LISTEN", "host:65536", ADDRESS),
    ("SCRAPE_INTERVAL", "fast", DURATION),
    ("SCRAPE_INTERVAL", "nan", DURATION),
    ("SCRAPE_INTERVAL", "-1s", "input should be greater than or equal to 0.1 seconds"),
    ("SCRAPE_INTERVAL", "6m", "input should be less than or equal to 300 seconds"),
    ("THRESHOLDS__COVERAGE", "2", "input should be less than or equal to 1"),
    ("SCRAPE_CPU_SHARE", "1%", NUMBER),
    ("VLLM_CA_FILE", "gone.pem", "cannot be read: No such file or directory"),
    ("TEMPERATURE_BUCKETS", "-1,0", EDGES),
    ("TEMPERATURE_BUCKETS", "0,0.5,0.5", EDGES),
    ("TEMPERATURE_BUCKETS", "0,0.125", EDGES),
    ("LOG__LEVEL", "trace", "input should be 'debug', 'info', 'warning' or 'error'"),
    ("PLUGIN__SOCKET", "plugin.sock", "expected absolute path of at most 107 bytes"),
    (
        "ALERTING__ALERTMANAGERS",
        "http://am:9093",
        'expected list such as ["http://alertmanager:9093"] (not valid JSON: expected value at line 1 column 1)',
    ),
    (
        "ALERTING__LABELS",
        "team=ml",
        'expected mapping such as {"team": "ml"} (not valid JSON: expected ident at line 1 column 2)',
    ),
    ("BASELINE", "{", f"expected {BASELINE} (not valid JSON: EOF while parsing an object at line 1 column 1)"),
]


@pytest.mark.parametrize(("setting", "value", "fault"), VARIABLES)
def test_a_variable_that_cannot_be_used(config, messages, setting, value, fault):
    config("")  # for an empty working directory
    name = f"SPECDEC_{setting}"
    assert messages(None, {name: value}) == [f"{name}={value}: {fault}"]


def test_variables_that_contradict_a_default_are_named_as_they_were_written(messages):
    name = "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE"
    assert messages(None, {name: "0.9"}) == [f"{name}=0.9, thresholds.acceptance_break_even=0.65: {ORDER}"]


IN_FILES = [
    (
        "temperature_buckets: [0,1,2,3,4,5,6,7,8]",
        "temperature_buckets (in config.yaml)=[…]: tuple should have at most 8 items after validation, not 9",
    ),
    ("scrape_interval: true", f"scrape_interval (in config.yaml)=true: {DURATION}"),
    ("scrape_interval: [1]", "scrape_interval (in config.yaml)=[…]: input should be a valid number"),
    ("limits: 5", f"limits (in config.yaml)=5: {MAPPING}"),
    (
        "vllm_ca_file: config.yaml",
        "vllm_ca_file (in config.yaml)=config.yaml: no certificate in this file; expected path of a PEM file",
    ),
    (
        f"plugin: {{socket: /{'x' * 107}}}",
        f"plugin.socket (in config.yaml)=/{'x' * 78}…: expected absolute path of at most 107 bytes",
    ),
    ('baseline_file: "a\\0b"', "baseline_file (in config.yaml)=a\\x00b: embedded null byte"),
    ("baseline_file: gone", "baseline_file (in config.yaml)=gone: cannot be read: No such file or directory"),
    (
        "baseline: {m: {ttft: {p50: 0.2, p90: 0.1}}}",
        (
            "baseline.m.ttft (in config.yaml)={…}: a higher quantile is "
            "below a lower one; expected p50 <= p90 <= p95 <= p99"
        ),
    ),
    (
        "baseline: {m: {tttf: {}}}",
        "baseline.m.tttf.[key] (in config.yaml)=tttf: input should be 'ttft', 'itl', 'tpot', 'e2e' or 'queue'",
    ),
    (
        "baseline: {'': {}}",
        "baseline..[key] (in config.yaml)=: string should match pattern '^[^\\x00-\\x1f\\x7f]+$'",
    ),
    (
        'baseline: {"m\\ud800": {}}',  # which no page could be written with
        (
            "baseline.m���.[key] (in config.yaml)=m\\ud800: input should be a valid string, "
            "unable to parse raw data as a unicode string"
        ),
    ),
    # Unknown keys, whose values may be secrets.
    ("scrape_intervall: 5", "scrape_intervall (in config.yaml): unknown setting; did you mean scrape_interval?"),
    ("page_bytes: 5", "page_bytes (in config.yaml): unknown setting; remove it"),
    ("limits: {page_byte: 5}", "limits.page_byte (in config.yaml): unknown setting; did you mean limits.page_bytes?"),
    ("_cli_parse_args: true", "_cli_parse_args (in config.yaml): unknown setting; remove it"),
    ("7: 5", "7 (in config.yaml): unknown setting; remove it"),
    ("thresholds: {zebra: 5}", "thresholds.zebra (in config.yaml): unknown setting; remove it"),
    # Conflicting settings.
    (
        "{scrape_interval: 30, latency_window: 10s}",
        f"scrape_interval=30, latency_window=10: {ORDER}",
    ),
    ("latency_window: 1h", f"latency_window=3600, history=900: {ORDER}"),
    (
        "thresholds: {acceptance_net_negative: 0.7}",
        (f"thresholds.acceptance_net_negative=0.7, thresholds.acceptance_break_even=0.65: {ORDER}"),
    ),
    (
        "thresholds: {acceptance_fewer_tokens: 0.9}",
        (f"thresholds.acceptance_fewer_tokens=0.9, thresholds.acceptance_more_tokens=0.8: {ORDER}"),
    ),
]


@pytest.mark.parametrize(("text", "fault"), IN_FILES)
def test_a_file_that_cannot_be_used(config, messages, text, fault):
    assert messages(config(text), {}) == [fault]


@pytest.mark.parametrize("measured", ["baseline", "plain_steps"])
def test_a_baseline_file_excludes_what_would_be_in_it(config, messages, measured):
    config("baseline: {}", "base.yaml")
    steps = "{m: {running: [1], seconds: [1], errors: [0]}}" if measured == "plain_steps" else "{m: {}}"
    path = config(f"baseline_file: base.yaml\n{measured}: {steps}")
    assert messages(path, {}) == [f"baseline_file, {measured}: mutually exclusive; keep one of them"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("SPECDEC_SCRAPE_INTERVALL", "unknown setting; did you mean SPECDEC_SCRAPE_INTERVAL?"),
        ("SPECDEC_LOG_LEVEL", "unknown setting; did you mean SPECDEC_LOG__LEVEL?"),
        ("SPECDEC_scrape_interval", "unknown setting; did you mean SPECDEC_SCRAPE_INTERVAL?"),
        ("SPECDEC_LIMITS__PAGE_BYTE", "unknown setting; did you mean SPECDEC_LIMITS__PAGE_BYTES?"),
        ("SPECDEC_LISTEN_PORT", "unknown setting; remove it"),
        ("SPECDEC_PORT", "unknown setting; remove it"),
        ("SPECDEC_", "unknown setting; remove it"),
    ],
)
def test_an_unknown_variable_is_named_without_its_value(messages, name, fault):
    assert messages(None, {name: "9911"}) == [f"{name}: {fault}"]


def test_all_faults_are_reported_at_once_and_invalid_values_cause_no_conflict(config, messages):
    path = config("thresholds: {acceptance_net_negative: 0.9, acceptance_break_even: high}\nhistory: 10\nlimit: 1")
    assert messages(path, {"SPECDEC_LISTEN": "x", "SPECDEC_LISTENS": "x"}) == [
        "SPECDEC_LISTENS: unknown setting; did you mean SPECDEC_LISTEN?",
        f"SPECDEC_LISTEN=x: {ADDRESS}",
        f"thresholds.acceptance_break_even (in config.yaml)=high: {NUMBER}",
        "limit (in config.yaml): unknown setting; did you mean limits?",
        f"latency_window=300, history=10: {ORDER}",
    ]


def test_invalid_yaml_does_not_hide_faults_in_the_environment(config, messages):
    path = config("a: b: c")
    environ = {"SPECDEC_LISTEN": "x", "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.9"}  # the file may say 0.95
    assert messages(path, environ) == [
        "config.yaml: line 1 is not valid YAML: mapping values are not allowed here",
        f"SPECDEC_LISTEN=x: {ADDRESS}",
    ]


def test_an_invalid_group_in_the_file_is_reported_despite_the_environment(config, messages):
    assert messages(config("limits: 5"), {"SPECDEC_LIMITS__SERIES": "10"}) == [f"limits (in config.yaml)=5: {MAPPING}"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:hunter2@host:99999", "http://***@host:99999"),
        ("me:hunter2@host:8000", "***@host:8000"),
        ("http://me:hunter2/@host/metrics", "http://***@host/metrics"),
        ("http://host/?key=hunter2", "http://host/?***"),
        ("http://host/#key=hunter2", "http://host/#***"),
        ("http://me:hun?ter2@host", "http://***@host"),
    ],
)
def test_no_fault_contains_a_credential(messages, url, shown):
    (line,) = messages(None, {"SPECDEC_VLLM_URL": url})
    assert line.startswith(f"SPECDEC_VLLM_URL={shown}: ")
    (line,) = messages(None, {"SPECDEC_ALERTING__ALERTMANAGERS": json.dumps([url])})
    assert line.startswith(f"SPECDEC_ALERTING__ALERTMANAGERS.0={shown}: ")


@pytest.mark.parametrize("name", ["runbooks", "dashboards"])
def test_an_address_for_people_has_no_credentials(messages, name):
    (line,) = messages(None, {f"SPECDEC_ALERTING__{name.upper()}": "https://me:hunter2@grafana"})
    assert line == (
        f"SPECDEC_ALERTING__{name.upper()}=https://***@grafana: "
        "must not have user information, because alerts and metrics show it"
    )


def test_a_fault_is_one_short_line_whatever_the_input(config, messages):
    key = "x\n" * 500
    for line in messages(config(json.dumps({key: 1, "listen": key, "baseline": {key: {"a": 1}}})), {}):
        assert line.isprintable()
        assert len(line) < 250
