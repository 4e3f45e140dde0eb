"""One bad configuration a rule, with the line that an operator gets."""

import json
from pathlib import Path

import pytest

URL = "not an http or https URL; write one such as http://127.0.0.1:8000"
DURATION = "not a duration; write a number of seconds or a value such as 500ms, 1s, 5m"
ADDRESS = "not an address; write host:port or [IPv6]:port, such as 0.0.0.0:9911"
NAME = "not a name that can be used; write 1 to 63 letters, digits, dots, underscores or hyphens"

VARIABLES = [
    ("VLLM_URL", "127.0.0.1:8000", URL),
    ("VLLM_URL", "ftp://host", URL),
    ("VLLM_URL", "http://", URL),
    ("VLLM_URL", "http://host:70000", URL),
    ("VLLM_URL", "http://host:0", URL),
    ("VLLM_URL", "http://ho st", URL),
    ("VLLM_URL", "http://[::1", URL),
    ("VLLM_URL", "http://host/metrics/", "ends in /metrics, which is added to it; write the URL without it"),
    ("LISTEN", "9911", ADDRESS),
    ("LISTEN", ":9911", ADDRESS),
    ("LISTEN", "::1:9911", ADDRESS),
    ("LISTEN", "[::g]:9911", ADDRESS),
    ("LISTEN", "host:http", ADDRESS),
    ("LISTEN", "host:65536", "no such port; write 0 to 65535"),
    ("SCRAPE_INTERVAL", "fast", DURATION),
    ("SCRAPE_INTERVAL", "1m30s", DURATION),
    ("SCRAPE_INTERVAL", "1 d", DURATION),
    ("SCRAPE_INTERVAL", "nan", DURATION),
    ("SCRAPE_INTERVAL", "99ms", "out of range; write 100ms to 5m"),
    ("SCRAPE_INTERVAL", "301", "out of range; write 100ms to 5m"),
    ("SCRAPE_INTERVAL", "1e999", "out of range; write 100ms to 5m"),
    ("SCRAPE_CPU_SHARE", "0", "out of range; write 0.0001 to 1"),
    ("SCRAPE_CPU_SHARE", "1%", "not a number; write 0.0001 to 1"),
    ("SCRAPE_FILTERED", "maybe", "neither true nor false; write the one or the other"),
    ("VLLM_CA_FILE", "gone.pem", "can't be read (No such file or directory); write the path of a readable PEM file"),
    ("DEFAULT_TEMPERATURE", "hot", "not a number; write 0 to 100"),
    ("DEFAULT_TEMPERATURE", "-0.1", "out of range; write 0 to 100"),
    ("TEMPERATURE_BUCKETS", "0,,1", "not a list of numbers; write them as [0, 0.5, 1] or as 0, 0.5, 1"),
    ("TEMPERATURE_BUCKETS", "[]", "not a list of numbers; write them as [0, 0.5, 1] or as 0, 0.5, 1"),
    ("TEMPERATURE_BUCKETS", "0,0.5,0.5", "not strictly increasing; write each edge once, the lowest first"),
    ("TEMPERATURE_BUCKETS", "-1,0", "an edge is out of range; write numbers from 0 up"),
    ("TEMPERATURE_BUCKETS", "1,1e999", "an edge is out of range; write numbers from 0 up"),
    ("TEMPERATURE_BUCKETS", ",".join(map(str, range(9))), "9 edges; write at most 8"),
    ("REQUESTS__SOURCE", "prox", "not a choice; write none, proxy, middleware or traces"),
    ("LOG__LEVEL", "trace", "not a choice; write debug, info, warning or error"),
    ("LOG__FORMAT", "xml", "not a choice; write auto, json or console"),
    ("LIMITS__LABELS", "6.5", "not a whole number; write 4 to 1024"),
    ("LIMITS__PAGE_BYTES", "1024", "out of range; write 65536 to 67108864"),
    ("LIMITS__PAGE_BYTES", "99999999999999999999", "not a whole number; write 65536 to 67108864"),
    ("THRESHOLDS__COVERAGE", "80", "out of range; write 0 to 1"),
    ("MIDDLEWARE__SOCKET", "events.sock", "not an absolute path; write one such as /run/specdec/events.sock"),
    ("TARGETS", "a=http://host", "not JSON; write a list of {name, vllm_url}"),
    ("TARGETS", '"text"', "not a list; write one, each entry on a line of its own after a hyphen"),
    ("BASELINE", "{", "not JSON; write a mapping of model to phase to quantile to seconds"),
]


@pytest.mark.parametrize(("setting", "value", "fault"), VARIABLES)
def test_a_variable_that_cannot_be_used(config, faults, setting, value, fault):
    config("")  # for an empty working directory
    name = f"SPECDEC_{setting}"
    shown = {'"text"': "text"}.get(value, value)
    assert faults(None, {name: value}) == [f"{name}={shown}: {fault}"]


FILES = [
    ("scrape_interval: fast", f"scrape_interval (in config.yaml)=fast: {DURATION}"),
    ("scrape_interval: true", f"scrape_interval (in config.yaml)=true: {DURATION}"),
    ("scrape_interval: [1]", f"scrape_interval (in config.yaml)=[…]: {DURATION}"),
    ("scrape_interval: .nan", f"scrape_interval (in config.yaml)=nan: {DURATION}"),
    ("limits: 5", "limits (in config.yaml)=5: not a mapping; write its keys below it, as key: value"),
    ("limits: {labels: true}", "limits.labels (in config.yaml)=true: not a whole number; write 4 to 1024"),
    ("listen: 9911", f"listen (in config.yaml)=9911: {ADDRESS}"),
    (
        "vllm_ca_file: config.yaml",
        (
            "vllm_ca_file (in config.yaml)=config.yaml: holds no usable certificate; "
            "write the path of a PEM file of CA certificates"
        ),
    ),
    (
        f"middleware: {{socket: /{'x' * 107}}}",
        (f"middleware.socket (in config.yaml)=/{'x' * 78}…: too long for a Unix socket; write at most 107 bytes"),
    ),
    ('baseline_file: "a\\0b"', "baseline_file (in config.yaml)=a\\x00b: not a path; write the path of a file"),
    ("baseline_file: 7", "baseline_file (in config.yaml)=7: not a path; write the path of a file"),
    (
        "targets: {a: http://host}",
        ("targets (in config.yaml)={…}: not a list; write one, each entry on a line of its own after a hyphen"),
    ),
    ("targets: [{name: a b, vllm_url: 'http://host'}]", f"targets.0.name (in config.yaml)=a b: {NAME}"),
    (
        f"targets: [{{name: {'a' * 64}, vllm_url: 'http://host'}}]",
        f"targets.0.name (in config.yaml)={'a' * 64}: {NAME}",
    ),
    ("targets: [{name: a, vllm_url: host}]", f"targets.0.vllm_url (in config.yaml)=host: {URL}"),
    ("targets: [{name: a}]", "targets.0.vllm_url (in config.yaml): missing; write it"),
    (
        "baseline: {m: {ttft: {p50: 0.2, p90: 0.1}}}",
        (
            "baseline.m.ttft (in config.yaml)={…}: a higher quantile lies "
            "below a lower one; write p50, p90, p95, p99 in rising order"
        ),
    ),
    ("baseline: {m: {ttft: {p50: -1}}}", "baseline.m.ttft.p50 (in config.yaml)=-1: out of range; write 0s to 1h"),
    (
        "baseline: {7: {}}",
        (
            "baseline (in config.yaml), key 7: not a name that can be used; write 1 to 256 characters, "
            "none of them a control character"
        ),
    ),
    (
        'baseline: {"m\\ud800": {}}',  # which no page could be written with
        (
            "baseline (in config.yaml), key m\\ud800: not a name that can be used; write 1 to 256 characters, "
            "none of them a control character"
        ),
    ),
    # Unknown keys, whose values nobody knows the secrecy of.
    ("scrape_intervall: 5", "scrape_intervall (in config.yaml): unknown setting; did you mean scrape_interval?"),
    ("page_bytes: 5", "page_bytes (in config.yaml): unknown setting; did you mean limits.page_bytes?"),
    ("limits: {page_byte: 5}", "limits.page_byte (in config.yaml): unknown setting; did you mean limits.page_bytes?"),
    ("zebra: 5", "zebra (in config.yaml): unknown setting; remove it"),
    ("_cli_parse_args: true", "_cli_parse_args (in config.yaml): unknown setting; remove it"),
    ("zebra:", "zebra (in config.yaml): unknown setting; remove it"),
    ("7: 5", "7 (in config.yaml): unknown setting; remove it"),
    ("log: {7: 5}", "log.7 (in config.yaml): unknown setting; did you mean log?"),
    (
        "targets: [{name: a, vllm_url: 'http://host', nme: b}]",
        "targets.0.nme (in config.yaml): unknown setting; did you mean targets.0.name?",
    ),
    ("baseline: {m: {tttf: {}}}", "baseline.m.tttf (in config.yaml): unknown setting; did you mean baseline.m.ttft?"),
    (
        "baseline: {m: {e2e: {p9: 1}}}",
        "baseline.m.e2e.p9 (in config.yaml): unknown setting; did you mean baseline.m.e2e.p99?",
    ),
    # Settings at odds.
    (
        "{vllm_url: 'http://h', targets: [{name: a, vllm_url: 'http://b'}]}",
        "vllm_url (in config.yaml)=http://h, targets (in config.yaml)=[…]: each excludes the other; keep one of them",
    ),
    (
        "targets: [{name: a, vllm_url: 'http://b'}, {name: a, vllm_url: 'http://c'}]",
        "targets (in config.yaml)=[…]: two targets have the name a; give each one of its own",
    ),
    (
        "{requests: {source: proxy}, targets: [{name: a, vllm_url: 'http://b'}, {name: b, vllm_url: 'http://c'}]}",
        (
            "requests.source (in config.yaml)=proxy, targets (in config.yaml)=[…]: requests can be observed for one "
            "vLLM alone; run a sidecar for each, or set requests.source to none"
        ),
    ),
    (
        "scrape_interval: 2m",
        (
            "scrape_interval (in config.yaml)=2m, scrape_max_interval (default)=1m: the interval is "
            "longer than its maximum; raise the second"
        ),
    ),
    (
        "{scrape_interval: 30, latency_window: 10s}",
        (
            "scrape_interval (in config.yaml)=30, latency_window (in "
            "config.yaml)=10s: no two polls fall into the window; widen the second"
        ),
    ),
    (
        "latency_window: 1h",
        (
            "history (default)=15m, latency_window (in config.yaml)=1h: the history is shorter than the "
            "window; raise the first"
        ),
    ),
    (
        "thresholds: {acceptance_net_negative: 0.7}",
        (
            "thresholds.acceptance_net_negative (in config.yaml)=0.7, "
            "thresholds.acceptance_break_even (default)=0.65: the first must not lie above the second; lower it"
        ),
    ),
    (
        "thresholds: {acceptance_fewer_tokens: 0.8}",
        (
            "thresholds.acceptance_fewer_tokens (in config.yaml)=0.8, "
            "thresholds.acceptance_more_tokens (default)=0.8: the first must lie below the second; lower it"
        ),
    ),
    (
        "{requests: {source: proxy}, proxy: {listen: '127.0.0.1:9911'}}",
        (
            "listen (default)=0.0.0.0:9911, proxy.listen "
            "(in config.yaml)=127.0.0.1:9911: both listen at one port; give one of them another"
        ),
    ),
    (
        "{requests: {source: traces}, listen: 'a:4318', traces: {listen: 'a:4318'}}",
        (
            "listen (in config.yaml)=a:4318, "
            "traces.listen (in config.yaml)=a:4318: both listen at one port; give one of them another"
        ),
    ),
    (
        "vllm_url: http://localhost:9911",
        (
            "vllm_url (in config.yaml)=http://localhost:9911, listen (default)="
            "0.0.0.0:9911: vLLM's address is the sidecar's own; give one of them another port"
        ),
    ),
    (
        "{requests: {source: proxy}, vllm_url: 'http://127.0.0.1:8080'}",
        (
            "vllm_url (in config.yaml)=http://127.0.0.1:8080"
            ", proxy.listen (default)=0.0.0.0:8080: vLLM's address is the sidecar's own; give one of them another port"
        ),
    ),
]


@pytest.mark.parametrize(("text", "fault"), FILES)
def test_a_file_that_cannot_be_used(config, faults, text, fault):
    assert faults(config(text), {}) == [fault]


def test_too_many_targets_and_too_many_models(config, faults):
    targets = [{"name": f"t{n}", "vllm_url": "http://host"} for n in range(17)]
    baseline = {f"m{n}": {} for n in range(65)}
    assert faults(config(json.dumps({"targets": targets, "baseline": baseline})), {}) == [
        "targets (in config.yaml)=[…]: too many entries; write at most 16",
        "baseline (in config.yaml)={…}: too many entries; write at most 64",
    ]


def test_a_certificate_that_is_not_to_be_checked(config, faults):
    path = config(Path(__file__).with_name("ca.pem").read_bytes(), "ca.pem")
    assert faults(config(f"{{vllm_ca_file: {path}, vllm_tls_verify: false}}"), {}) == [
        (
            "vllm_ca_file (in config.yaml)=ca.pem, vllm_tls_verify (in config.yaml)=false: "
            "there is nothing to check the certificates for; keep one of them"
        )
    ]
