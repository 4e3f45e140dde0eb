"""One invalid configuration per rule with its exact lines, and properties of every line."""

import json

import pytest

URL = "expected http or https URL without query and fragment, such as http://HOST:PORT"
DURATION = "expected duration, a number of seconds or a number and ms, s, m or h"
ADDRESS = "expected host:port or [IPv6]:port; port 0 picks a free one"
EDGES = "expected list of 1 to 8 numbers from 0 up, strictly increasing, with at most two decimals"
NUMBER = "input should be a valid number, unable to parse string as a number"
GROUP = "limits (in config.yaml)=5: input should be a valid dictionary or instance of Limits"
BASELINE = 'expected mapping such as {"MODEL": {"ttft": {"p50": 0.2}}}'
ADDRESSES = 'expected list such as ["http://alertmanager:9093"]'
AT = "at line 1 column 1"
PHASES = "'ttft', 'itl', 'tpot', 'e2e' or 'queue'"
PATH = "expected absolute path of at most 107 bytes"
NEGATIVE, BREAK_EVEN = "thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"
FEWER, MORE = "thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"
ORDER = "the first must not be above the second"
RISING = "a higher quantile is below a lower one; expected p50 <= p90 <= p95 <= p99"
TEXT = "input should be a valid string, unable to parse raw data as a unicode string"
PEM = "expected path of a PEM file"
MANY = "tuple should have at most 8 items after validation, not 9"
STEPS = "{running: [1], seconds: [1], context: 9}"
SECONDS = "seconds must be above 0 and at most 3600"
LENGTH = "running, seconds and context_seconds differ in length"
CONTEXT = "context and contexts must be above 0 and at most 1e9, contexts ascending"
FIRST = "first_token_seconds must be from 0 to 3600"
VARIABLE = "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE"
COLON = "mapping values are not allowed here"
MEASURE = "`specdec-sidecar baseline --out FILE` writes a baseline"
EXCLUSIVE = "mutually exclusive; keep one of them"


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("VLLM_URL", "127.0.0.1:8000", URL),
        ("VLLM_URL", "http://", URL),
        ("VLLM_URL", "http://host:70000", URL),
        ("VLLM_URL", "http://host:0", URL),
        ("VLLM_URL", "http://ho st", URL),
        ("VLLM_URL", "http://[::1", URL),
        ("LISTEN", ":9911", ADDRESS),
        ("LISTEN", "::1:9911", ADDRESS),
        ("LISTEN", "host:http", ADDRESS),
        ("LISTEN", "host:65536", ADDRESS),
        ("SCRAPE_INTERVAL", "fast", DURATION),
        ("SCRAPE_INTERVAL", "-1s", "input should be greater than or equal to 0.1 seconds"),
        ("SCRAPE_INTERVAL", "6m", "input should be less than or equal to 300 seconds"),
        ("THRESHOLDS__COVERAGE", "2", "input should be less than or equal to 1"),
        ("SCRAPE_CPU_SHARE", "1%", NUMBER),
        ("VLLM_CA_FILE", "gone.pem", "cannot be read: No such file or directory"),
        ("TEMPERATURE_BUCKETS", "-1,0", EDGES),
        ("TEMPERATURE_BUCKETS", "0,0.5,0.5", EDGES),
        ("TEMPERATURE_BUCKETS", "0,0.125", EDGES),
        ("LOG__LEVEL", "trace", "input should be 'debug', 'info', 'warning' or 'error'"),
        ("PLUGIN__SOCKET", "plugin.sock", PATH),
        (
            "ALERTING__ALERTMANAGERS",
            "http://am:9093",
            f"{ADDRESSES} (not valid JSON: expected value {AT})",
        ),
        ("BASELINE", "{", f"{BASELINE} (not valid JSON: EOF while parsing an object {AT})"),
    ],
)
def test_an_invalid_variable_is_named_with_its_value_and_what_is_expected(
    config, messages, setting, value, problem
):
    config("")  # for an empty working directory
    assert messages(None, {f"SPECDEC_{setting}": value}) == [
        f"SPECDEC_{setting}={value}: {problem}"
    ]


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("temperature_buckets: [0,1,2,3,4,5,6,7,8]", "temperature_buckets", f"=[…]: {MANY}"),
        ("scrape_interval: true", "scrape_interval", f"=true: {DURATION}"),
        ("scrape_interval: [1]", "scrape_interval", "=[…]: input should be a valid number"),
        (
            "vllm_ca_file: config.yaml",
            "vllm_ca_file",
            f"=config.yaml: no certificate in this file; {PEM}",
        ),
        (f"plugin: {{socket: /{'x' * 107}}}", "plugin.socket", f"=/{'x' * 78}…: {PATH}"),
        ('baseline_file: "a\\0b"', "baseline_file", f"=a\\x00b: embedded null byte; {MEASURE}"),
        (
            "baseline_file: gone",
            "baseline_file",
            f"=gone: cannot be read: No such file or directory; {MEASURE}",
        ),
        ("baseline: {m: {ttft: {p50: 0.2, p90: 0.1}}}", "baseline.m.ttft", f"={{…}}: {RISING}"),
        ("baseline: {m: {tttf: {}}}", "baseline.m.tttf.[key]", f"=tttf: input should be {PHASES}"),
        (
            "baseline: {'': {}}",
            "baseline..[key]",
            "=: string should match pattern '^[^\\x00-\\x1f\\x7f]+$'",
        ),
        # no page could be written with it
        ('baseline: {"m\\ud800": {}}', "baseline.m���.[key]", f"=m\\ud800: {TEXT}"),
        # Unknown keys, whose values may be secrets.
        (
            "scrape_intervall: 5",
            "scrape_intervall",
            ": unknown setting; correct or remove it",
        ),
        ("page_bytes: 5", "page_bytes", ": unknown setting; correct or remove it"),
        (
            "limits: {page_byte: 5}",
            "limits.page_byte",
            ": unknown setting; correct or remove it",
        ),
        ("7: 5", "7", ": unknown setting; correct or remove it"),
        (
            f"plain_steps: {{m: {STEPS[:-1]}, x: 1}}}}",
            "plain_steps.m.x",
            ": unknown setting; correct or remove it",
        ),
    ],
)
def test_an_invalid_key_of_the_file_is_named_with_its_value_and_what_is_expected(
    config, messages, text, key, problem
):
    assert messages(config(text), {}) == [f"{key} (in config.yaml){problem}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "{scrape_interval: 30, latency_window: 10s}",
            f"scrape_interval=30, latency_window=10: {ORDER}",
        ),
        ("latency_window: 1h", f"latency_window=3600, history=900: {ORDER}"),
        (
            "thresholds: {acceptance_net_negative: 0.7}",
            f"{NEGATIVE}=0.7, {BREAK_EVEN}=0.65: {ORDER}",
        ),
        ("thresholds: {acceptance_fewer_tokens: 0.9}", f"{FEWER}=0.9, {MORE}=0.8: {ORDER}"),
        ("{baseline_file: base.yaml, baseline: {m: {}}}", f"baseline_file, baseline: {EXCLUSIVE}"),
        (
            f"{{baseline_file: base.yaml, plain_steps: {{m: {STEPS}}}}}",
            f"baseline_file, plain_steps: {EXCLUSIVE}",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(config, messages, text, line):
    config("", "base.yaml")
    assert messages(config(text), {}) == [line]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("running: [2, 1], seconds: [1, 1], context: 9", "running must rise, from above 0"),
        ("running: [1, 2], seconds: [1], context: 9", LENGTH),
        ("running: [1], seconds: [1], context: 9, context_seconds: [0, 0]", LENGTH),
        ("running: [1], seconds: [1], context: 9, rounds: [{seconds: [1, 1]}]", LENGTH),
        ("running: [1], seconds: [0], context: 9", SECONDS),
        ("running: [], seconds: [], context: 9", "expected 1 to 16 numbers of running requests"),
        ("running: [1], seconds: [1], context: 9, first_token_seconds: [-1]", FIRST),
        ("running: [1], seconds: [1], context: 9, first_token_seconds: [3601]", FIRST),
        ("running: [1], seconds: [1], context: 0", CONTEXT),
        ("running: [1], seconds: [1], context: 9, contexts: [9, 2]", CONTEXT),
        (
            "running: [1], seconds: [1], context: 9, attention_seconds: 2",
            "context_seconds, prefill_seconds and attention_seconds must be from -1 to 1",
        ),
    ],
)
def test_plain_step_times_that_are_no_curve_are_refused(config, messages, steps, problem):
    config(f"plain_steps: {{m: {{{steps}}}}}", "base.yaml")
    line = f"SPECDEC_BASELINE_FILE.plain_steps.m={{…}}: {problem}"
    assert messages(None, {"SPECDEC_BASELINE_FILE": "base.yaml"}) == [line]


@pytest.mark.parametrize(
    "name",
    ["SPECDEC_SCRAPE_INTERVALL", "SPECDEC_LOG_LEVEL", "SPECDEC_LISTEN_PORT", "SPECDEC_"],
)
def test_an_unknown_variable_is_named_without_its_value(messages, name):
    """A value whose name is unknown may be a secret."""
    assert messages(None, {name: "9911"}) == [f"{name}: unknown setting; correct or remove it"]


@pytest.mark.parametrize(
    ("text", "environ", "lines"),
    [
        (  # An invalid value causes no conflict.
            (
                "thresholds: {acceptance_net_negative: 0.9, acceptance_break_even: high}\nhistory:"
                " 10\nlimit: 1"
            ),
            {"SPECDEC_LISTEN": "x", "SPECDEC_LISTENS": "x"},
            [
                "SPECDEC_LISTENS: unknown setting; correct or remove it",
                f"SPECDEC_LISTEN=x: {ADDRESS}",
                f"{BREAK_EVEN} (in config.yaml)=high: {NUMBER}",
                "limit (in config.yaml): unknown setting; correct or remove it",
                f"latency_window=300, history=10: {ORDER}",
            ],
        ),
        (  # The file may say 0.95.
            "a: b: c",
            {"SPECDEC_LISTEN": "x", VARIABLE: "0.9"},
            [f"config.yaml: line 1 is not valid YAML: {COLON}", f"SPECDEC_LISTEN=x: {ADDRESS}"],
        ),
        ("", {VARIABLE: "0.9"}, [f"{VARIABLE}=0.9, {BREAK_EVEN}=0.65: {ORDER}"]),
        ("limits: 5", {"SPECDEC_LIMITS__SERIES": "10"}, [GROUP]),
    ],
)
def test_all_problems_of_the_file_and_the_environment_are_reported_at_once(
    config, messages, text, environ, lines
):
    """One restart for all of them, and no problem that only follows from another."""
    assert messages(config(text), environ) == lines


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
def test_no_message_contains_a_credential(messages, url, shown):
    (line,) = messages(None, {"SPECDEC_VLLM_URL": url})
    assert line.startswith(f"SPECDEC_VLLM_URL={shown}: ")
    (line,) = messages(None, {"SPECDEC_ALERTING__ALERTMANAGERS": json.dumps([url])})
    assert line.startswith(f"SPECDEC_ALERTING__ALERTMANAGERS.0={shown}: ")


@pytest.mark.parametrize("name", ["SPECDEC_ALERTING__RUNBOOKS", "SPECDEC_ALERTING__DASHBOARDS"])
def test_addresses_that_alerts_show_must_have_no_credentials(messages, name):
    """Everybody who gets an alert would read them."""
    problem = "must not have user information, because alerts and metrics show it"
    assert messages(None, {name: "https://me:hunter2@grafana"}) == [
        f"{name}=https://***@grafana: {problem}"
    ]


def test_a_message_is_one_short_line_whatever_the_input(config, messages):
    key = "x\n" * 500
    for line in messages(
        config(json.dumps({key: 1, "listen": key, "baseline": {key: {"a": 1}}})), {}
    ):
        assert line.isprintable()
        assert len(line) < 250


@pytest.mark.parametrize(
    "value", ['{"Authorization": "Bearer secret\\u0000"}', '["secret"]', '{"secret": ', "secret"]
)
def test_no_part_of_a_header_is_in_a_message(config, messages, value):
    """It may be a token."""
    config("")
    (message,) = messages(None, {"SPECDEC_ALERTING__HEADERS": value})
    assert message.startswith("SPECDEC_ALERTING__HEADERS")
    assert "secret" not in message


def test_no_part_of_the_probes_key_is_in_a_message(config, messages):
    (message,) = messages(config('probe: {api_key: "secret\\n"}'), {})
    assert message.startswith("probe.api_key (in config.yaml): string should match pattern")
    assert "secret" not in message


def test_a_certificate_and_a_key_that_do_not_match_are_named(messages, authority):
    certificate, _ = authority.issue("one")
    _, key = authority.issue("other")
    names = "SPECDEC_VLLM_CERT_FILE, SPECDEC_VLLM_KEY_FILE"
    both = {"SPECDEC_VLLM_CERT_FILE": str(certificate), "SPECDEC_VLLM_KEY_FILE": str(key)}
    (mismatch,) = messages(None, both)
    assert mismatch == (
        f"{names}: not usable PEM files, or certificate and key do not match (KEY_VALUES_MISMATCH)"
    )

    (alone,) = messages(None, {"SPECDEC_VLLM_KEY_FILE": str(key)})
    assert alone.endswith("the key needs a certificate")

    (gone,) = messages(None, both | {"SPECDEC_VLLM_KEY_FILE": "/nonexistent"})
    assert gone == f"{names}: the key cannot be read: No such file or directory"
