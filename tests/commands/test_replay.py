import gzip
import json

import pytest

from tests.commands.commands_tools import LEVELS, command

KEYS = ["requests", "draft_tokens", "accepted_tokens", "acceptance", "p10", "p50", "p90", "speedup"]
K3 = str(LEVELS / "k3")


def sums():
    """The truth by temperature, computed independently: vLLM's own numbers for each request, summed."""
    found = {}
    with gzip.open(LEVELS / "k3" / "requests.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            numbers = line["speculative_decoding"]
            one = found.setdefault(line["temperature"], [0, 0, 0])
            one[0] += 1
            one[1] += numbers["num_draft_tokens"]
            one[2] += numbers["num_accepted_draft_tokens"]
    return found


def replayed(capsys, *argv, **environment):
    assert command("replay", K3, *argv, "--json", **environment) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_documented_keys_and_the_exact_sums(capsys):
    found, truth = replayed(capsys), sums()
    assert list(found) == [
        "model", "temperatures", "coverage", "speedup", "break_even_acceptance", "reference", "withheld",
    ]  # fmt: skip
    for label, temperature in (("0-0.3", 0.2), ("0.5-0.7", 0.6), ("1+", 1.2)):
        bucket = found["temperatures"][label]
        assert list(bucket) == KEYS
        assert [bucket[key] for key in KEYS[:3]] == truth[temperature]
        assert bucket["acceptance"] == bucket["accepted_tokens"] / bucket["draft_tokens"]
        assert bucket["p10"] <= bucket["p50"] <= bucket["p90"]
    assert (len(found["temperatures"]), found["coverage"], found["withheld"]) == (3, 1, "no_reference")


def test_against_a_baseline_it_has_the_speedup_of_the_clients_times(capsys, tmp_path):
    file = tmp_path / "baseline.yaml"
    assert command("baseline", "--recording", str(LEVELS / "plain"), "--out", str(file)) == 0
    capsys.readouterr()
    found = replayed(capsys, "--baseline", str(file))
    assert found["speedup"] == pytest.approx(0.984, abs=0.07)
    assert {label: bucket["speedup"] for label, bucket in found["temperatures"].items()} == pytest.approx(
        {"0-0.3": 1.016, "0.5-0.7": 1.035, "1+": 0.928}, abs=0.07
    )
    assert found["reference"] == "baseline"


def test_buckets_are_those_of_the_settings(capsys):
    assert list(replayed(capsys, TEMPERATURE_BUCKETS="0, 0.9")["temperatures"]) == ["0-0.9", "0.9+"]


def test_the_table_shows_the_same_numbers(capsys):
    found = replayed(capsys)
    assert command("replay", K3) == 0
    header, *rows, _, coverage, since, why = capsys.readouterr().out.splitlines()
    titles = "temperature requests draft tokens accepted tokens acceptance P10 P50 P90 speedup"
    assert " ".join(header.split()) == titles
    for row, (label, bucket) in zip(rows, found["temperatures"].items(), strict=True):
        numbers = [f"{bucket[key]:,}" for key in KEYS[:3]] + [f"{bucket[key]:.3f}" for key in KEYS[3:-1]]
        assert row.split() == [label, *numbers, "-"]
    assert len({len(row) for row in rows}) == 1
    assert coverage.startswith("coverage 1.000: ")
    assert "which may be before the recording" in since
    assert why.startswith("no speedup: ")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, None, "no recording (scrapes.jsonl is missing)"),
        ("scrapes.jsonl", "{}\n", "scrapes.jsonl, line 1: not a poll"),
        ("scrapes.jsonl", "[]\n", "scrapes.jsonl, line 1: not a poll"),
        ("scrapes.jsonl.gz", "no gzip", "scrapes.jsonl.gz: "),
    ],
)
def test_a_bad_recording_is_one_clear_line(tmp_path, capsys, name, content, said):
    if name:
        (tmp_path / name).write_text(content)
    assert command("replay", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


async def test_a_reader_that_closes_early_is_not_an_error(program):
    async with program("replay", K3, "--json") as process:
        process.stdout._transport.close()
        _, err = await process.communicate()
    assert err == b""
    assert process.returncode == 1
