"""Reading recordings: both kinds, damaged ones, and what a recording of requests is taken for."""

import gzip
import json

import pytest
from structlog.testing import capture_logs

from sidecar.errors import RecordingError
from sidecar.recording.recording import read_heard, read_scrapes
from sidecar.recording.replay import replay
from sidecar.requests.tally import Outcome, Tally
from sidecar.settings import Settings

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
    """At its end, with the totals of its temperature until then; vLLM's own counters begin where they stood."""
    later = REQUEST | {"end": 101.5}
    write(tmp_path, "requests", [later, REQUEST | {"temperature": None, "chunks": []}, REQUEST], packed=packed)
    write(tmp_path, "scrapes", polls(99, 100.3, 102))
    hello, *heard = read_heard(tmp_path, list(read_scrapes(tmp_path)))
    assert (hello.hello.engine, hello.at) == (0, 99)
    assert [one.at for one in heard] == [99, 101, 101, 101.5]
    reports = [one.report for one in heard]
    before = Tally(drafts=3, draft_tokens=9, accepted_tokens=5)
    each = Tally(length=1, drafts=2, draft_tokens=6, accepted_tokens=3, drafted_at=(2, 2, 2), accepted_at=(2, 1, 0))
    assert [report.end.total for report in reports] == [
        before,
        before + each,
        before + each + each,
        before + each + each + each,
    ]
    assert [(row.key, row.counts) for report in reports for row in report.temperature] == [
        ("other", before), (100, each), (40, each), (40, each + each),
    ]  # fmt: skip
    (default,), (done,), (later,) = (report.finished for report in reports[1:])
    assert [default.temperature, done.temperature, later.temperature] == [100, 40, 40]
    assert (done.lengths, done.first_token, done.last_token, done.outcome) == (
        (0, 1, 1, 0), 100.25, 100.5, Outcome.LENGTH,
    )  # fmt: skip


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
        ("plugin", [{"at": 1.0, "connection": 1, "report": {"end": 1.0}}]),
        ("scrapes", ["[]\n"]),
        ("scrapes", [{"start": 1.0}]),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, name, lines):
    folder = write(tmp_path, name, lines)
    with pytest.raises(RecordingError, match=rf"{name}\.jsonl, line 1"):
        list(read_scrapes(folder) if name == "scrapes" else read_heard(folder, []))


def test_a_damaged_file_and_a_missing_one_are_errors(tmp_path):
    with pytest.raises(RecordingError, match=r"no recording \(scrapes\.jsonl is missing\)"):
        list(read_scrapes(tmp_path / "nowhere"))
    write(tmp_path, "requests", [REQUEST] * 50, packed=True)
    packed = tmp_path / "requests.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-8] + bytes(8))  # another checksum
    with pytest.raises(RecordingError):
        list(read_heard(tmp_path, []))


@pytest.mark.parametrize(("part", "read"), [("header", [99, 100]), ("half", [99, 100]), ("trailer", [99, 100, 101])])
def test_of_a_recording_that_is_cut_off_all_before_that_is_read_and_it_is_said(tmp_path, part, read):
    """As one that was copied while a member was being written."""
    members = [gzip.compress(f"{json.dumps(poll)}\n".encode()) for poll in polls(99, 100, 101)]
    left = {"header": 4, "half": len(members[2]) // 2, "trailer": len(members[2]) - 4}[part]
    (tmp_path / "scrapes.jsonl.gz").write_bytes(members[0] + members[1] + members[2][:left])
    with capture_logs() as logs:
        assert [scrape.at for scrape in read_scrapes(tmp_path)] == read
    cut = "the recording is truncated; using the part before that"
    assert [(line["event"], line["lines"]) for line in logs] == [(cut, len(read))]


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
    assert {one.tally.draft_tokens for one in model.temperatures} <= {0}
