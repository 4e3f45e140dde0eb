"""Reading recordings, also damaged ones; ``test_recorder.py`` reads what a recorder wrote."""

import gzip
import json

import pytest
from structlog.testing import capture_logs

from sidecar.errors import RecordingError
from sidecar.recording.recording import read_plugin, read_scrapes, replay
from sidecar.settings import Settings
from tests.recording.recorder_tools import PAGE, write

POLLS = [{"start": at - 0.5, "end": at + 0.5, "text": PAGE} for at in (99, 100, 101)]


def test_a_poll_has_its_middle_time_and_an_unusable_page_is_a_failed_poll(tmp_path):
    write(tmp_path, "scrapes", [POLLS[0], {"start": 100.0, "end": 100.25, "text": "<html>"}])
    first, second = read_scrapes(tmp_path)
    assert (first.at, first.duration, second.at) == (99, 1, 100.125)
    assert first.snapshot.engines[0].counters["drafts"] == 3
    assert (second.snapshot, second.error.reason) == (None, "not_an_exposition")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plugin", "{\n"),
        ("plugin", {"at": "soon"}),
        ("plugin", {"at": 1.0, "connection": 1, "report": {"end": 1.0}}),
        ("scrapes", "[]\n"),
        ("scrapes", {"start": 1.0}),
        ("scrapes", {"start": "soon", "end": 1.0, "text": PAGE}),
    ],
)
def test_the_error_names_a_damaged_line(tmp_path, name, line):
    write(tmp_path, name, [line])
    with pytest.raises(RecordingError, match=rf"{name}\.jsonl, line 1: not a "):
        list(read_scrapes(tmp_path) if name == "scrapes" else read_plugin(tmp_path))


def test_a_damaged_file_a_missing_one_and_one_without_a_poll_are_errors(tmp_path):
    with pytest.raises(RecordingError, match=r"no recording \(scrapes\.jsonl is missing\)"):
        list(read_scrapes(tmp_path))
    write(tmp_path, "scrapes", [])
    with pytest.raises(RecordingError, match="no poll"):
        replay(tmp_path, Settings())
    packed = gzip.compress(b'{"at": 1.0}\n' * 50)
    (tmp_path / "plugin.jsonl.gz").write_bytes(packed[:-8] + bytes(8))  # another checksum
    with pytest.raises(RecordingError):
        list(read_plugin(tmp_path))


@pytest.mark.parametrize(("part", "polls"), [("header", 2), ("half", 2), ("trailer", 3)])
def test_a_truncated_recording_is_read_up_to_there_and_a_log_line_says_so(tmp_path, part, polls):
    """As one that was copied while a gzip member was being written."""
    members = [gzip.compress(f"{json.dumps(poll)}\n".encode()) for poll in POLLS]
    kept = {"header": 4, "half": len(members[2]) // 2, "trailer": len(members[2]) - 4}[part]
    (tmp_path / "scrapes.jsonl.gz").write_bytes(members[0] + members[1] + members[2][:kept])
    with capture_logs() as logs:
        assert [scrape.at for scrape in read_scrapes(tmp_path)] == [99, 100, 101][:polls]
    event = "the recording is truncated; using the part before that"
    assert [(line["event"], line["lines"]) for line in logs] == [(event, polls)]
