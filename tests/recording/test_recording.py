"""Reading recordings: both kinds, damaged ones, and what a recording of requests is taken for."""

import gzip
import json
from pathlib import Path

import pytest

from sidecar.errors import RecordingError
from sidecar.recording.recording import read_heard, read_scrapes
from sidecar.recording.replay import replay
from sidecar.requests.messages import Outcome
from sidecar.settings import Settings

LEVELS = Path(__file__).parents[1] / "data" / "levels"
PAGE = """# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 12
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 9
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5
"""
REQUEST = {
    "id": 1, "path": "/v1/chat/completions", "temperature": 0.4, "stream": True, "start": 100.0,
    "chunks": [0.1, 0.25, 0.5], "usage": {"prompt_tokens": 4, "completion_tokens": 5}, "end": 101.0,
    "speculative_decoding": {
        "num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [0, 1, 1, 0],
    },
}  # fmt: skip


def write(directory, name, lines, *, packed=False):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    if packed:
        (directory / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (directory / f"{name}.jsonl").write_text(text)
    return directory


def polls(*times):
    return [{"start": at - 0.5, "end": at + 0.5, "text": PAGE} for at in times]


@pytest.mark.parametrize("packed", [False, True])
def test_a_request_is_read_as_a_plug_in_would_have_told_it(tmp_path, packed):
    write(tmp_path, "requests", [REQUEST, REQUEST | {"temperature": None, "chunks": []}], packed=packed)
    write(tmp_path, "scrapes", polls(99, 100.3, 102))
    hello, first, half, *requests, last = read_heard(tmp_path, list(read_scrapes(tmp_path)))
    assert (hello.hello.engine, hello.at) == (0, 99)
    assert (first.tick.total, first.tick.temperature) == ((3, 9, 5), ())  # where vLLM's own counters stand
    (row,) = half.tick.temperature  # one of its two events with tokens has come
    assert row[:5] == (40, (0, 0, 0, 0), 1, 3, 1)
    assert [one.request.temperature for one in requests] == [40, 100]
    done = requests[0].request
    assert (done.lengths, done.first_token, done.last_token, done.outcome) == (
        (0, 1, 1, 0), 100.25, 100.5, Outcome.LENGTH,
    )  # fmt: skip
    assert [row[:5] for row in last.tick.temperature] == [(key, (0, 1, 0, 0), 2, 6, 3) for key in (40, 100)]
    assert (last.tick.temperature[0].drafted_at, last.tick.temperature[0].accepted_at) == ((2, 2, 2), (2, 1, 0))
    assert last.tick.total == (3 + 4, 9 + 12, 5 + 6)


def test_a_poll_has_its_middle_time_and_an_unusable_page_is_a_failed_poll(tmp_path):
    lines = [{"start": 1.0, "end": 1.5, "text": PAGE}, {"start": 2.0, "end": 2.0, "text": "<html>"}]
    first, second = read_scrapes(write(tmp_path, "scrapes", lines))
    assert (first.at, first.duration) == (1.25, 0.5)
    assert first.snapshot.engines[0].counters["drafts"] == 3
    assert (second.snapshot, second.error.reason) == (None, "not_an_exposition")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("requests", ["{\n"]),
        ("requests", ["[]\n"]),
        ("requests", [{"id": 1}]),
        ("requests", [REQUEST | {"start": "soon"}]),
        ("requests", [REQUEST | {"outcome": "vanished"}]),
        ("requests", [REQUEST | {"speculative_decoding": {"num_spec_steps": "x"}}]),
        ("plugin", ["{\n"]),
        ("plugin", [{"at": "soon"}]),
        ("plugin", [{"at": 1.0, "connection": 1, "tick": {"at": 1.0}}]),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, name, lines):
    with pytest.raises(RecordingError, match=rf"{name}\.jsonl, line 1"):
        list(read_heard(write(tmp_path, name, lines), []))


def test_a_damaged_poll_a_cut_file_and_a_missing_one_are_errors(tmp_path):
    with pytest.raises(RecordingError, match="line 1"):
        list(read_scrapes(write(tmp_path, "scrapes", [{"start": 1.0}])))
    with pytest.raises(RecordingError, match="no recording"):
        list(read_scrapes(tmp_path / "nowhere"))
    write(tmp_path, "requests", [REQUEST] * 50, packed=True)
    packed = tmp_path / "requests.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RecordingError):
        list(read_heard(tmp_path, []))


def test_a_recording_without_a_poll_is_an_error(tmp_path):
    write(tmp_path, "scrapes", [])
    write(tmp_path, "requests", [REQUEST])
    with pytest.raises(RecordingError, match="no poll"):
        replay(tmp_path, Settings())


def test_a_recording_without_speculation_gives_no_number(tmp_path):
    bare = PAGE.split("# TYPE vllm:spec", maxsplit=1)[0]
    write(tmp_path, "scrapes", [{**poll, "text": bare} for poll in polls(99, 100, 101, 102)])
    write(tmp_path, "requests", [REQUEST | {"speculative_decoding": None}])
    (model,) = replay(tmp_path, Settings()).models
    assert model.engines[0].coverage is None
    assert {one.draft_tokens for one in model.temperatures} <= {0}


def test_a_replay_takes_the_windows_of_the_settings():
    whole, short = (replay(LEVELS / "k3", Settings(latency_window=seconds)) for seconds in (300.0, 30.0))
    assert whole.models[0].temperatures[5].draft_tokens == short.models[0].temperatures[5].draft_tokens
    ratio = whole.models[0].temperatures[5].window.draft_tokens / short.models[0].temperatures[5].window.draft_tokens
    assert ratio > 2
