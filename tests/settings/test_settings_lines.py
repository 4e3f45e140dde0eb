"""What holds for every fault's line: all at once, no credentials, a near name, one short line."""

import json

import pytest

ADDRESS = "not an address; write host:port or [IPv6]:port, such as 0.0.0.0:9911"


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
def test_an_unknown_variable_is_named_and_its_value_is_not(faults, name, fault):
    assert faults(None, {name: "9911"}) == [f"{name}: {fault}"]


def test_all_faults_come_at_once_and_a_rule_is_not_judged_on_a_value_that_is_wrong_itself(config, faults):
    path = config("thresholds: {acceptance_net_negative: 0.9, acceptance_break_even: high}\nhistory: 10\nlimit: 1")
    assert faults(path, {"SPECDEC_LISTEN": "x", "SPECDEC_LISTENS": "x"}) == [
        "SPECDEC_LISTENS: unknown setting; did you mean SPECDEC_LISTEN?",
        "limit (in config.yaml): unknown setting; did you mean limits?",
        f"SPECDEC_LISTEN=x: {ADDRESS}",
        "thresholds.acceptance_break_even (in config.yaml)=high: not a number; write 0 to 1",
        (
            "history (in config.yaml)=10, latency_window (default)=5m: the history is shorter than the window; "
            "raise the first"
        ),
    ]


def test_a_file_that_is_no_yaml_does_not_hide_what_is_wrong_in_the_environment(config, faults):
    path = config("a: b: c")
    environ = {"SPECDEC_LISTEN": "x", "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.9"}  # the file may say 0.95
    assert faults(path, environ) == [
        "config.yaml: line 1 is not valid YAML (mapping values are not allowed here); correct it",
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
def test_no_credential_is_in_a_fault(faults, url, shown):
    (line,) = faults(None, {"SPECDEC_VLLM_URL": url})
    assert line.startswith(f"SPECDEC_VLLM_URL={shown}: ")
    (line,) = faults(None, {"SPECDEC_TARGETS": json.dumps([{"name": "a", "vllm_url": url}])})
    assert line.startswith(f"SPECDEC_TARGETS.0.vllm_url={shown}: ")


def test_a_fault_stays_one_short_line_whatever_is_written(config, faults):
    key = "x\n" * 500
    for line in faults(config(json.dumps({key: 1, "listen": key, "baseline": {key: {"a": 1}}})), {}):
        assert line.isprintable()
        assert len(line) < 250
