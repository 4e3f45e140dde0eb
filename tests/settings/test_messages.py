"""One invalid configuration per rule with its exact line, and properties of every line."""

import json
from pathlib import Path

import pytest

URL = "expected http or https URL, such as http://127.0.0.1:8000"
DURATION = "expected duration, 100ms to 5m"
ADDRESS = "expected host:port or [IPv6]:port; port 0 picks a free one"
NAME = "string should match pattern '^[A-Za-z0-9._-]+$'"
EDGES = "expected list of 1 to 8 numbers from 0 up, strictly increasing"

VARIABLES = [
    ("VLLM_URL", "127.0.0.1:8000", URL),
    ("VLLM_URL", "ftp://host", URL),
    ("VLLM_URL", "http://", URL),
    ("VLLM_URL", "http://host:70000", URL),
    ("VLLM_URL", "http://host:0", URL),
    ("VLLM_URL", "http://ho st", URL),
    ("VLLM_URL", "http://[::1", URL),
    ("VLLM_URL", "http://host/metrics/", "expected URL without /metrics, which is added to it"),
    ("LISTEN", "9911", ADDRESS),
    ("LISTEN", ":9911", ADDRESS),
    ("LISTEN", "::1:9911", ADDRESS),
    ("LISTEN", "[::g]:9911", ADDRESS),
    ("LISTEN", "host:http", ADDRESS),
    ("LISTEN", "host:65536", ADDRESS),
    ("SCRAPE_INTERVAL", "fast", DURATION),
    ("SCRAPE_INTERVAL", "1m30s", DURATION),
    ("SCRAPE_INTERVAL", "1 d", DURATION),
    ("SCRAPE_INTERVAL", "nan", DURATION),
    ("SCRAPE_INTERVAL", "99ms", DURATION),
    ("SCRAPE_INTERVAL", "301", DURATION),
    ("SCRAPE_INTERVAL", "1e999", DURATION),
    ("SCRAPE_CPU_SHARE", "0", "expected number, 0.0001 to 1"),
    ("SCRAPE_CPU_SHARE", "1%", "expected number, 0.0001 to 1"),
    ("SCRAPE_FILTERED", "maybe", "expected true or false"),
    ("VLLM_CA_FILE", "gone.pem", "cannot be read: No such file or directory"),
    ("DEFAULT_TEMPERATURE", "hot", "expected number, 0 to 100"),
    ("DEFAULT_TEMPERATURE", "-0.1", "expected number, 0 to 100"),
    ("TEMPERATURE_BUCKETS", "0,,1", EDGES),
    ("TEMPERATURE_BUCKETS", "[]", EDGES),
    ("TEMPERATURE_BUCKETS", "0,0.5,0.5", EDGES),
    ("TEMPERATURE_BUCKETS", "-1,0", EDGES),
    ("TEMPERATURE_BUCKETS", "1,1e999", EDGES),
    ("TEMPERATURE_BUCKETS", ",".join(map(str, range(9))), EDGES),
    ("REQUESTS__SOURCE", "prox", "expected none, proxy, middleware or traces"),
    ("LOG__LEVEL", "trace", "expected debug, info, warning or error"),
    ("LOG__FORMAT", "xml", "expected auto, json or console"),
    ("LIMITS__LABELS", "6.5", "expected whole number, 4 to 1024"),
    ("LIMITS__PAGE_BYTES", "1024", "expected whole number of bytes, 65536 to 67108864"),
    ("LIMITS__PAGE_BYTES", "99999999999999999999", "expected whole number of bytes, 65536 to 67108864"),
    ("THRESHOLDS__COVERAGE", "80", "expected number, 0 to 1"),
    ("MIDDLEWARE__SOCKET", "events.sock", "expected absolute path of at most 107 bytes"),
    ("TARGETS", "a=http://host", "not valid JSON: expected value at line 1 column 1"),
    ("TARGETS", '"text"', "expected list of at most 16 {name, vllm_url} (JSON in the environment)"),
    ("BASELINE", "{", "not valid JSON: EOF while parsing an object at line 1 column 1"),
]


@pytest.mark.parametrize(("setting", "value", "fault"), VARIABLES)
def test_a_variable_that_cannot_be_used(config, messages, setting, value, fault):
    config("")  # for an empty working directory
    name = f"SPECDEC_{setting}"
    assert messages(None, {name: value}) == [f"{name}={value}: {fault}"]


FILES = [
    ("scrape_interval: fast", f"scrape_interval (in config.yaml)=fast: {DURATION}"),
    ("scrape_interval: true", f"scrape_interval (in config.yaml)=true: {DURATION}"),
    ("scrape_interval: [1]", f"scrape_interval (in config.yaml)=[…]: {DURATION}"),
    ("scrape_interval: .nan", f"scrape_interval (in config.yaml)=.nan: {DURATION}"),
    ("limits: 5", "limits (in config.yaml)=5: expected mapping"),
    ("limits: {labels: true}", "limits.labels (in config.yaml)=true: expected whole number, 4 to 1024"),
    ("listen: 9911", f"listen (in config.yaml)=9911: {ADDRESS}"),
    (
        "vllm_ca_file: config.yaml",
        ("vllm_ca_file (in config.yaml)=config.yaml: no certificate in this file; expected path of a PEM file"),
    ),
    (
        f"middleware: {{socket: /{'x' * 107}}}",
        (f"middleware.socket (in config.yaml)=/{'x' * 78}…: expected absolute path of at most 107 bytes"),
    ),
    ('baseline_file: "a\\0b"', "baseline_file (in config.yaml)=a\\x00b: embedded null byte"),
    ("baseline_file: 7", "baseline_file (in config.yaml)=7: cannot be read: No such file or directory"),
    ("baseline_file: []", "baseline_file (in config.yaml)=[…]: expected path of a file"),
    (
        "targets: {a: http://host}",
        "targets (in config.yaml)={…}: expected list of at most 16 {name, vllm_url} (JSON in the environment)",
    ),
    ("targets: [{name: a b, vllm_url: 'http://host'}]", f"targets.0.name (in config.yaml)=a b: {NAME}"),
    (
        f"targets: [{{name: {'a' * 64}, vllm_url: 'http://host'}}]",
        f"targets.0.name (in config.yaml)={'a' * 64}: string should have at most 63 characters",
    ),
    ("targets: [{name: a, vllm_url: host}]", f"targets.0.vllm_url (in config.yaml)=host: {URL}"),
    ("targets: [{name: a}]", "targets.0.vllm_url (in config.yaml): missing"),
    (
        "baseline: {m: {ttft: {p50: 0.2, p90: 0.1}}}",
        (
            "baseline.m.ttft (in config.yaml)={…}: a higher quantile is "
            "below a lower one; expected p50 <= p90 <= p95 <= p99"
        ),
    ),
    (
        "baseline: {m: {ttft: {p50: -1}}}",
        "baseline.m.ttft.p50 (in config.yaml)=-1: input should be greater than or equal to 0",
    ),
    (
        "baseline: {'': {}}",
        ("baseline (in config.yaml), key : string should match pattern '^[^\\x00-\\x1f\\x7f]+$'"),
    ),
    (
        'baseline: {"m\\ud800": {}}',  # which no page could be written with
        (
            "baseline (in config.yaml), key m\\ud800: input should be a valid string, "
            "unable to parse raw data as a unicode string"
        ),
    ),
    # Unknown keys, whose values may be secrets.
    ("scrape_intervall: 5", "scrape_intervall (in config.yaml): unknown setting; did you mean scrape_interval?"),
    ("page_bytes: 5", "page_bytes (in config.yaml): unknown setting; did you mean limits.page_bytes?"),
    ("limits: {page_byte: 5}", "limits.page_byte (in config.yaml): unknown setting; did you mean limits.page_bytes?"),
    ("zebra: 5", "zebra (in config.yaml): unknown setting; remove it"),
    ("_cli_parse_args: true", "_cli_parse_args (in config.yaml): unknown setting; remove it"),
    ("zebra:", "zebra (in config.yaml): unknown setting; remove it"),
    ("7: 5", "7 (in config.yaml): unknown setting; remove it"),
    ("log: {7: 5}", "log.7 (in config.yaml): unknown setting; remove it"),
    ("thresholds: {zebra: 5}", "thresholds.zebra (in config.yaml): unknown setting; remove it"),
    (
        "targets: [{name: a, vllm_url: 'http://host', nme: b}]",
        "targets.0.nme (in config.yaml): unknown setting; did you mean targets.0.name?",
    ),
    (
        "baseline: {m: {tttf: {}}}",
        "baseline.m (in config.yaml), key tttf: input should be 'ttft', 'itl', 'tpot', 'e2e' or 'queue'",
    ),
    (
        "baseline: {m: {e2e: {p9: 1}}}",
        "baseline.m.e2e (in config.yaml), key p9: input should be 'p50', 'p90', 'p95' or 'p99'",
    ),
    # Conflicting settings.
    (
        "{vllm_url: 'http://h', targets: [{name: a, vllm_url: 'http://b'}]}",
        "vllm_url (in config.yaml)=http://h, targets (in config.yaml)=[…]: mutually exclusive; keep one of them",
    ),
    (
        "targets: [{name: a, vllm_url: 'http://b'}, {name: a, vllm_url: 'http://c'}]",
        "targets (in config.yaml)=[…]: two targets have the same name; make names unique",
    ),
    (
        "{requests: {source: proxy}, targets: [{name: a, vllm_url: 'http://b'}, {name: b, vllm_url: 'http://c'}]}",
        (
            "requests.source (in config.yaml)=proxy, targets (in config.yaml)=[…]: requests are observed for one "
            "vLLM only; run one sidecar per vLLM"
        ),
    ),
    (
        "scrape_interval: 2m",
        (
            "scrape_interval (in config.yaml)=2m, scrape_max_interval (default)=1m: the first "
            "must not be above the second"
        ),
    ),
    (
        "{scrape_interval: 30, latency_window: 10s}",
        (
            "scrape_interval (in config.yaml)=30, latency_window (in "
            "config.yaml)=10s: the first must not be above the second"
        ),
    ),
    (
        "latency_window: 1h",
        ("latency_window (in config.yaml)=1h, history (default)=15m: the first must not be above the second"),
    ),
    (
        "thresholds: {acceptance_net_negative: 0.7}",
        (
            "thresholds.acceptance_net_negative (in config.yaml)=0.7, "
            "thresholds.acceptance_break_even (default)=0.65: the first must not be above the second"
        ),
    ),
    (
        "thresholds: {acceptance_fewer_tokens: 0.8}",
        (
            "thresholds.acceptance_fewer_tokens (in config.yaml)=0.8, "
            "thresholds.acceptance_more_tokens (default)=0.8: the first must be below the second"
        ),
    ),
    (
        "{requests: {source: proxy}, proxy: {listen: '127.0.0.1:9911'}}",
        (
            "listen (default)=0.0.0.0:9911, proxy.listen "
            "(in config.yaml)=127.0.0.1:9911: both listen on the same port; change one of them"
        ),
    ),
    (
        "{requests: {source: traces}, listen: 'a:4318', traces: {listen: 'a:4318'}}",
        (
            "listen (in config.yaml)=a:4318, "
            "traces.listen (in config.yaml)=a:4318: both listen on the same port; change one of them"
        ),
    ),
    (
        "vllm_url: http://localhost:9911",
        (
            "vllm_url (in config.yaml)=http://localhost:9911, listen (default)="
            "0.0.0.0:9911: vLLM's address is the sidecar's own; change one of the ports"
        ),
    ),
    (
        "{requests: {source: proxy}, vllm_url: 'http://127.0.0.1:8080'}",
        (
            "vllm_url (in config.yaml)=http://127.0.0.1:8080"
            ", proxy.listen (default)=0.0.0.0:8080: vLLM's address is the sidecar's own; change one of the ports"
        ),
    ),
]


@pytest.mark.parametrize(("text", "fault"), FILES)
def test_a_file_that_cannot_be_used(config, messages, text, fault):
    assert messages(config(text), {}) == [fault]


def test_too_many_targets_and_too_many_models(config, messages):
    targets = [{"name": f"t{n}", "vllm_url": "http://host"} for n in range(17)]
    baseline = {f"m{n}": {} for n in range(65)}
    assert messages(config(json.dumps({"targets": targets, "baseline": baseline})), {}) == [
        "targets (in config.yaml)=[…]: expected list of at most 16 {name, vllm_url} (JSON in the environment)",
        (
            "baseline (in config.yaml)={…}: expected mapping of at most 64 models to phase to quantile to seconds "
            "(JSON in the environment)"
        ),
    ]


def test_a_certificate_that_is_not_verified(config, messages):
    path = config(Path(__file__).with_name("ca.pem").read_bytes(), "ca.pem")
    assert messages(config(f"{{vllm_ca_file: {path}, vllm_tls_verify: false}}"), {}) == [
        (
            "vllm_ca_file (in config.yaml)=ca.pem, vllm_tls_verify (in config.yaml)=false: "
            "no certificate is verified; keep one of them"
        )
    ]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("SPECDEC_SCRAPE_INTERVALL", "unknown setting; did you mean SPECDEC_SCRAPE_INTERVAL?"),
        ("SPECDEC_LOG_LEVEL", "unknown setting; did you mean SPECDEC_LOG__LEVEL?"),
        ("SPECDEC_scrape_interval", "unknown setting; did you mean SPECDEC_SCRAPE_INTERVAL?"),
        ("SPECDEC_LIMITS__PAGE_BYTE", "unknown setting; did you mean SPECDEC_LIMITS__PAGE_BYTES?"),
        ("SPECDEC_LISTEN_PORT", "unknown setting; did you mean SPECDEC_LISTEN?"),
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
        "thresholds.acceptance_break_even (in config.yaml)=high: expected number, 0 to 1",
        "limit (in config.yaml): unknown setting; did you mean limits?",
        ("latency_window (default)=5m, history (in config.yaml)=10: the first must not be above the second"),
    ]


def test_invalid_yaml_does_not_hide_faults_in_the_environment(config, messages):
    path = config("a: b: c")
    environ = {"SPECDEC_LISTEN": "x", "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.9"}  # the file may say 0.95
    assert messages(path, environ) == [
        "config.yaml: line 1 is not valid YAML: mapping values are not allowed here",
        f"SPECDEC_LISTEN=x: {ADDRESS}",
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:hunter2@host:99999", "http://***@host:99999"),
        ("me:hunter2@host:8000", "***@host:8000"),
        ("http://me:hunter2/@host/metrics", "http://***@host/metrics"),
        ("http://me:hunter2@@host/metrics", "http://***@host/metrics"),
        ("http://host/?key=hunter2", "http://host/?***"),
        ("http://host/#key=hunter2", "http://host/#***"),
        ("http://me:hun?ter2@host", "http://***"),
        ("http://host/?to=a@b&key=hunter2", "http://***"),
    ],
)
def test_no_fault_contains_a_credential(messages, url, shown):
    (line,) = messages(None, {"SPECDEC_VLLM_URL": url})
    assert line.startswith(f"SPECDEC_VLLM_URL={shown}: ")
    (line,) = messages(None, {"SPECDEC_TARGETS": json.dumps([{"name": "a", "vllm_url": url}])})
    assert line.startswith(f"SPECDEC_TARGETS.0.vllm_url={shown}: ")


def test_a_fault_is_one_short_line_whatever_the_input(config, messages):
    key = "x\n" * 500
    for line in messages(config(json.dumps({key: 1, "listen": key, "baseline": {key: {"a": 1}}})), {}):
        assert line.isprintable()
        assert len(line) < 250
