"""The recorder by itself; tests/commands/test_record.py tests the command."""

import resource
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

from structlog.testing import capture_logs

from sidecar.recording import recorder as module
from sidecar.recording.heard import Heard
from sidecar.recording.recording import read_heard
from sidecar.requests.messages import Dropped, Unreadable, read_packet
from tests.recording.recorder_tools import lines_of, recorder
from tests.requests.packets import FINISHED, HELLO, REPORT, finishing, packet

PACKET = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))
REQUEST = Heard(1003.0, 1, report=PACKET.report)
FINISHED_ANONYMOUSLY = tuple(replace(request, adapter=None) for request in PACKET.report.finished)
WITHOUT_ADAPTER = replace(REQUEST, report=replace(PACKET.report, adapter=(), finished=FINISHED_ANONYMOUSLY))


def test_what_was_heard_is_passed_on_and_read_as_it_was_written_but_for_adapters(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(time=count(1001.0).__next__))
    messages, told = (PACKET.hello, PACKET.report, Dropped("malformed"), Unreadable(7), None), []
    with recorder(tmp_path) as one:
        sink = one.tee_requests(lambda *values: told.append(values))
        for message in messages:
            sink(1, message)
    assert told == [(1, message) for message in messages]
    assert one.requests == 1
    assert list(read_heard(tmp_path, [])) == [
        Heard(1001.0),
        Heard(1002.0, 1, hello=PACKET.hello),
        WITHOUT_ADAPTER,
        Heard(1006.0, 1),  # the two messages before it are not of an engine
    ]
    assert "tenant" not in str(lines_of(tmp_path, "plugin"))


def test_a_disk_that_fails_leaves_what_was_written(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as logs, recorder(tmp_path) as one:
        one.heard(REQUEST)
        one.page(1.0, 2.0, b"short")
        resource.setrlimit(resource.RLIMIT_FSIZE, (one.written + 10, before[1]))
        try:
            for _ in range(2):
                one.heard(REQUEST)
                one.page(1.0, 2.0, bytes(range(256)) * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [line["event"] for line in logs] == ["cannot write the recording; recording stopped, the sidecar continues"]
    assert [line["text"] for line in lines_of(tmp_path, "scrapes")] == ["short"]
    assert list(read_heard(tmp_path, []))[1:] == [WITHOUT_ADAPTER]


def test_once_it_has_stopped_pages_cost_nothing(tmp_path, monkeypatch):
    with recorder(tmp_path, max_bytes=10) as one:
        one.page(1.0, 2.0, b"x" * 100)
        monkeypatch.setattr(module.gzip, "compress", None)
        one.page(3.0, 4.0, b"x" * 100)
        assert one.scrapes == 0


def test_what_waits_for_the_next_poll_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING", 4000)
    with recorder(tmp_path) as one:
        one.heard(REQUEST)
        assert one.written == 0
        for _ in range(10):
            one.heard(REQUEST)
        assert one.written > 0
