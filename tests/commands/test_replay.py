import gzip
import json

import pytest

from tests.commands.commands_tools import RECORDINGS, command

KEYS = ["attribution", "requests", "draft_tokens", "accepted_tokens", "acceptance", "p10", "p50", "p90", "speedup"]


def sums(recording):
    """The truth by temperature, computed independently: vLLM's own numbers for each request, summed."""
    found = {}
    with gzip.open(RECORDINGS / recording / "requests.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            numbers = line["speculative_decoding"]
            one = found.setdefault(line["temperature"], [0, 0, 0])
            one[0] += 1
            one[1] += numbers["num_draft_tokens"]
            one[2] += numbers["num_accepted_draft_tokens"]
    return found


def replayed(capsys, *argv):
    assert command("replay", *argv, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_documented_keys_and_the_exact_sums(capsys):
    found = replayed(capsys, str(RECORDINGS / "draft_model-k3"))
    assert list(found) == [
        "temperatures", "coverage", "residual", "speedup", "break_even_acceptance", "reference", "withheld",
    ]  # fmt: skip
    truth = sums("draft_model-k3")
    assert list(found["temperatures"]) == ["0", "0.3-0.5", "0.7-1"]
    for label, temperatures in (("0", [0.0]), ("0.3-0.5", [0.4]), ("0.7-1", [0.8, 1.0])):
        bucket = found["temperatures"][label]
        assert list(bucket) == KEYS
        assert bucket["attribution"] == "exact"
        expected = [sum(truth[one][column] for one in temperatures) for column in range(3)]
        assert [bucket["requests"], bucket["draft_tokens"], bucket["accepted_tokens"]] == expected
        assert bucket["acceptance"] == expected[2] / expected[1]
        assert bucket["p10"] <= bucket["p50"] <= bucket["p90"]
    assert found["coverage"] == 1


def test_infer_ignores_the_requests_own_numbers(capsys):
    found = replayed(capsys, str(RECORDINGS / "draft_model-k3"), "--infer")
    assert {bucket["attribution"] for bucket in found["temperatures"].values()} == {"inferred"}


def test_a_replay_is_always_the_same(capsys):
    argv = str(RECORDINGS / "ngram-k3"), "--infer"
    assert replayed(capsys, *argv) == replayed(capsys, *argv)


def test_buckets_are_those_of_the_settings(capsys):
    code = command("replay", str(RECORDINGS / "draft_model-k3"), "--json", TEMPERATURE_BUCKETS="0, 0.9")
    assert code == 0
    assert list(json.loads(capsys.readouterr().out)["temperatures"]) == ["0", "0-0.9", "0.9+"]


def test_the_table_shows_the_same_numbers(capsys):
    found = replayed(capsys, str(RECORDINGS / "draft_model-k3"))
    assert command("replay", str(RECORDINGS / "draft_model-k3")) == 0
    header, *rows, _, coverage, residual, why = capsys.readouterr().out.splitlines()
    titles = "temperature requests draft tokens accepted tokens acceptance P10 P50 P90 speedup attribution"
    assert " ".join(header.split()) == titles
    for row, (label, bucket) in zip(rows, found["temperatures"].items(), strict=True):
        numbers = [f"{bucket[key]:,}" for key in KEYS[1:4]] + [f"{bucket[key]:.3f}" for key in KEYS[4:-1]]
        assert row.split() == [label, *numbers, "-", "exact"]
    assert len({len(row) for row in rows}) == 1
    assert coverage.startswith("coverage 1.000: ")
    assert residual.startswith("residual 0.0")
    assert why.startswith("no speedup: ")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, None, "no recording (requests.jsonl is missing)"),
        ("requests.jsonl", "{}\n", "requests.jsonl, line 1: not a request"),
        ("requests.jsonl", "[]\n", "requests.jsonl, line 1: not a JSON object"),
        ("requests.jsonl.gz", "no gzip", "requests.jsonl.gz: "),
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
    async with program("replay", str(RECORDINGS / "draft_model-k3"), "--json") as process:
        process.stdout._transport.close()
        _, err = await process.communicate()
    assert err == b""
    assert process.returncode == 1
