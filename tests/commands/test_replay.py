import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import reduce
from operator import add

import pytest

from tests.cells import numbers
from tests.commands.commands_tools import LEVELS, command, measured_plain
from tests.recording.recorder_tools import PAGE, lines_of, write

KEYS = ("requests", "draft_tokens", "accepted_tokens")
K3 = str(LEVELS / "k3")


def sums():
    """The truth by temperature, computed independently.

    It sums vLLM's own numbers for each request.
    """
    tallies = defaultdict(lambda: [0, 0, 0])
    for line in lines_of(LEVELS / "k3", "requests"):
        numbers = line["speculative_decoding"]
        counts = (1, numbers["num_draft_tokens"], numbers["num_accepted_draft_tokens"])
        tallies[line["temperature"]] = list(map(add, tallies[line["temperature"]], counts))
    return tallies


def replayed(capsys, *argv, **environment):
    """The model of the recording, and its temperatures that have requests, by label."""
    assert command("replay", *argv, "--json", **environment) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return model, {
        part["temperature"]: part for part in model["temperatures"] if part["window"]["requests"]
    }


def test_json_is_the_status_with_the_exact_sums(capsys):
    """To the token, by what the clients of the recording were told."""
    (model, split), truth = replayed(capsys, K3), sums()
    for label, temperature in (("0-0.3", 0.2), ("0.5-0.7", 0.6), ("1+", 1.2)):
        window, quantiles = split[label]["window"], split[label]["acceptance_quantiles"]
        assert [window[key] for key in KEYS] == truth[temperature]
        assert window["rate"] == window["accepted_tokens"] / window["draft_tokens"]
        assert quantiles["0.1"] <= quantiles["0.5"] <= quantiles["0.9"]
    assert (len(split), model["engines"][0]["coverage"], model["speed"]["withheld"]) == (
        3,
        1,
        "no_reference",
    )


def test_against_a_baseline_it_has_the_speedup_of_the_clients_times(capsys, monkeypatch, tmp_path):
    """Within 7 %, for all requests and by temperature."""
    file = tmp_path / "baseline.yaml"
    monkeypatch.setattr("specdec_tools.commands.baseline.measure", measured_plain)
    assert command("baseline", "--out", str(file)) == 0
    capsys.readouterr()
    model, split = replayed(capsys, K3, BASELINE_FILE=str(file))
    assert model["speed"]["speedup"]["ratio"] == pytest.approx(0.984, abs=0.07)
    assert {label: part["speedup"]["ratio"] for label, part in split.items()} == pytest.approx(
        {"0-0.3": 1.016, "0.5-0.7": 1.035, "1+": 0.928}, abs=0.07
    )


def test_it_counts_the_whole_recording_and_nothing_from_before_it(tmp_path, capsys):
    """The engine had drafted 3,000 tokens before.

    The recording is longer than the window of the settings.
    """

    def page(tokens):
        counted = {3: tokens // 3, 9: tokens, 5: tokens // 2}
        return reduce(
            lambda text, old: text.replace(f"}} {old}\n", f"}} {counted[old]}\n"), counted, PAGE
        )

    hello = {
        "plugin": "1",
        "vllm": None,
        "model": "m",
        "engine": 0,
        "start": "a",
        "started": 1.0,
        "state": "observing",
    }
    packets, polls = [{"at": 999.0}, {"at": 1000.0, "connection": 1, "hello": hello}], []
    for step in range(81):
        at, tokens = 1000.0 + 5 * step, 3000 + 30 * step
        key = {"temperature": 0, "bits": 0, "prompt": 0, "adapter": None}
        report = {
            "cells": [[key, numbers(step, tokens // 3, tokens, tokens // 2)]],
            "end": {"at": at, "steps": step, "lost": 0, "generation_tokens": tokens // 2,
                    "running": 0, "waiting": 0, "endings": {}},
        }  # fmt: skip
        packets.append({"at": at, "connection": 1, "report": report})
        polls.append({"start": at, "end": at + 0.25, "text": page(tokens)})
    write(tmp_path, "plugin", packets)
    write(tmp_path, "scrapes", polls)
    model, split = replayed(capsys, str(tmp_path), LATENCY_WINDOW="30s")
    (part,) = split.values()
    assert [part["window"][key] for key in KEYS] == [80, 2400, 1200]
    assert model["engines"][0]["coverage"] == 1


def test_buckets_are_those_of_the_settings(capsys):
    """A recording can be read again with other edges."""
    assert list(replayed(capsys, K3, TEMPERATURE_BUCKETS="0, 0.9")[1]) == ["0-0.9", "0.9+"]


def test_without_json_it_prints_what_report_prints(capsys):
    assert command("replay", K3) == 0
    printed = capsys.readouterr().out
    assert f"recording {K3}" in printed
    rows = {
        line.split()[0]: re.split(" {2,}", line)[8]
        for line in printed.splitlines()
        if line.startswith(("0-0.3 ", "1+ "))
    }
    _, split = replayed(capsys, K3)
    assert rows == {label: f"{split[label]['window']['requests']:,}" for label in ("0-0.3", "1+")}


def test_a_bad_recording_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "scrapes.jsonl.gz").write_text("no gzip")
    assert command("replay", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{tmp_path}/scrapes.jsonl.gz: Not a gzipped file (b'no')\n"


def test_a_reader_that_closes_early_is_not_an_error():
    """As with `| head`: no traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sidecar", "replay", K3, "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
