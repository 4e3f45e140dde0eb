"""The recorder by itself, and reading recordings, damaged ones too.

tests/commands/test_record.py has the command.
"""

import gzip
import json
import resource
from dataclasses import replace
from itertools import count
from random import Random
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from sidecar.errors import InputError
from sidecar.requests.messages import Dropped, Unreadable, read_packet
from sidecar.settings import Settings
from specdec_tools.recording import recording as module
from specdec_tools.recording.recording import PluginLine, read_plugin, read_scrapes, replay
from tests.recording.recorder_tools import PAGE, lines_of, recorder, write
from tests.requests.packets import FINISHED, HELLO, REPORT, finishing, packet

PACKET = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))
REQUEST = PluginLine(1003.0, 1, report=PACKET.report)
WITHOUT_ADAPTER = replace(
    REQUEST,
    report=replace(
        PACKET.report,
        cells=tuple(
            (replace(key, adapter=key.adapter and "adapter 1"), numbers)
            for key, numbers in PACKET.report.cells
        ),
        finished=tuple(replace(request, adapter="adapter 1") for request in PACKET.report.finished),
    ),
)


def test_messages_are_passed_on_and_read_back_as_they_were_except_for_adapters(
    tmp_path, monkeypatch
):
    """A recording is sent to others, and names of adapters are often those of tenants."""
    monkeypatch.setattr(module, "time", SimpleNamespace(time=count(1001.0).__next__))
    messages = (PACKET.hello, PACKET.report, Dropped("malformed"), Unreadable(7), None)
    passed_on = []
    with recorder(tmp_path) as recording:
        sink = recording.tee_requests(lambda *values: passed_on.append(values))
        for message in messages:
            sink(1, message)
    assert passed_on == [(1, message) for message in messages]
    assert recording.requests == 1
    assert list(read_plugin(tmp_path)) == [
        PluginLine(1001.0),
        PluginLine(1002.0, 1, hello=PACKET.hello),
        WITHOUT_ADAPTER,
        PluginLine(1004.0, 1),  # the two messages before it are not an engine's
    ]
    assert "tenant" not in str(lines_of(tmp_path, "plugin"))


@pytest.mark.parametrize(
    ("most", "disk", "problem"),
    [
        (10**9, 5000, "cannot write the recording"),
        (5000, resource.RLIM_INFINITY, "the recording has reached its size limit"),
    ],
)
def test_a_disk_that_fails_and_a_full_recording_leave_what_was_written(
    tmp_path, monkeypatch, most, disk, problem
):
    """Once it has stopped it compresses nothing more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as logs, recorder(tmp_path, max_bytes=most) as recording:
        recording.plugin(REQUEST)
        recording.page(1.0, 2.0, b"short")
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, before[1]))
        try:
            for _ in range(2):
                recording.plugin(REQUEST)
                recording.page(1.0, 2.0, Random(0).randbytes(20_000))
                monkeypatch.setattr(module.gzip, "compress", None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [line["event"] for line in logs] == [
        f"{problem}; recording stopped, the sidecar continues"
    ]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 5000
    assert [line["text"] for line in lines_of(tmp_path, "scrapes")] == ["short"]
    assert list(read_plugin(tmp_path))[1:] == [WITHOUT_ADAPTER] * 2


def test_messages_that_wait_for_the_next_poll_are_bounded(tmp_path, monkeypatch):
    """Polls may fail for hours while requests go on."""
    monkeypatch.setattr(module, "_MOST_WAITING", 4000)
    with recorder(tmp_path) as recording:
        recording.plugin(REQUEST)
        assert recording.written == 0
        for _ in range(10):
            recording.plugin(REQUEST)
        assert recording.written > 0


POLLS = [{"start": at - 0.5, "end": at + 0.5, "text": PAGE} for at in (99, 100, 101)]


def test_a_poll_has_its_middle_time_and_an_unusable_page_is_a_failed_poll(tmp_path):
    """As when it was recorded."""
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
    """So that it can be found and removed."""
    write(tmp_path, name, [line])
    with pytest.raises(InputError, match=rf"{name}\.jsonl\.gz, line 1: not a "):
        list(read_scrapes(tmp_path) if name == "scrapes" else read_plugin(tmp_path))


def test_a_damaged_file_a_missing_one_and_one_without_a_poll_are_errors(tmp_path):
    """Each with a message, never half a replay."""
    with pytest.raises(InputError, match=r"no recording \(scrapes\.jsonl\.gz is missing\)"):
        list(read_scrapes(tmp_path))
    write(tmp_path, "scrapes", [])
    with pytest.raises(InputError, match="no poll"):
        replay(tmp_path, Settings())
    packed = gzip.compress(b'{"at": 1.0}\n' * 50)
    (tmp_path / "plugin.jsonl.gz").write_bytes(packed[:-8] + bytes(8))  # another checksum
    with pytest.raises(InputError):
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
