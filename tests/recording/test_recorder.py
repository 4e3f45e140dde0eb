"""The recorder by itself; tests/commands/test_record.py tests the command."""

import resource
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

from structlog.testing import capture_logs

from sidecar.recording import recorder as module
from sidecar.recording.recording import PluginLine, read_plugin
from sidecar.requests.messages import Dropped, Unreadable, read_packet
from tests.recording.recorder_tools import lines_of, recorder
from tests.requests.packets import FINISHED, HELLO, REPORT, finishing, packet

PACKET = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))
REQUEST = PluginLine(1003.0, 1, report=PACKET.report)
FINISHED_ANONYMOUSLY = tuple(replace(request, adapter=None) for request in PACKET.report.finished)
WITHOUT_ADAPTER = replace(REQUEST, report=replace(PACKET.report, adapter=(), finished=FINISHED_ANONYMOUSLY))


def test_messages_are_passed_on_and_read_back_as_they_were_except_for_adapters(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(time=count(1001.0).__next__))
    messages, passed_on = (PACKET.hello, PACKET.report, Dropped("malformed"), Unreadable(7), None), []
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


def test_a_disk_that_fails_leaves_what_was_written(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as logs, recorder(tmp_path) as recording:
        recording.plugin(REQUEST)
        recording.page(1.0, 2.0, b"short")
        resource.setrlimit(resource.RLIMIT_FSIZE, (recording.written + 10, before[1]))
        try:
            for _ in range(2):
                recording.plugin(REQUEST)
                recording.page(1.0, 2.0, bytes(range(256)) * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [line["event"] for line in logs] == ["cannot write the recording; recording stopped, the sidecar continues"]
    assert [line["text"] for line in lines_of(tmp_path, "scrapes")] == ["short"]
    assert list(read_plugin(tmp_path))[1:] == [WITHOUT_ADAPTER]


def test_once_it_has_stopped_it_compresses_nothing_more(tmp_path, monkeypatch):
    with recorder(tmp_path, max_bytes=10) as recording:
        recording.page(1.0, 2.0, b"x" * 100)
        monkeypatch.setattr(module.gzip, "compress", None)
        recording.page(3.0, 4.0, b"x" * 100)
        assert recording.scrapes == 0


def test_messages_that_wait_for_the_next_poll_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING", 4000)
    with recorder(tmp_path) as recording:
        recording.plugin(REQUEST)
        assert recording.written == 0
        for _ in range(10):
            recording.plugin(REQUEST)
        assert recording.written > 0
