"""The recorder by itself; tests/commands/test_record.py tests the command."""

import asyncio
import math
import resource
import threading

import pytest

from sidecar.recording.recording import read_requests
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord
from tests.recording.recorder_tools import Log, lines_of, recorder


def record_of(**fields):
    known = {
        "id": "7",
        "path": "/v1/chat/completions",
        "model": "m",
        "temperature": 0.7,
        "choices": 1,
        "stream": True,
        "start": 1000.0,
        "first_token": 1000.25,
        "end": 1001.5,
        "outcome": Outcome.COMPLETED,
        "max_tokens": 9,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "stream_events": 2,
        "acceptance": RequestAcceptance(2, 6, 3, (1, 0, 0, 1)),
        "event_offsets": (0.25, 0.5),
    }
    return RequestRecord(**known | fields)


@pytest.mark.parametrize(
    "record",
    [
        record_of(),
        record_of(path="/v1/completions", temperature=None, choices=3, max_tokens=None, acceptance=None),
        record_of(stream=False, first_token=None, stream_events=0, event_offsets=()),
        record_of(outcome=Outcome.ABORTED, completion_tokens=None, prompt_tokens=None, acceptance=None),
        record_of(model=None, acceptance=RequestAcceptance(0, 0, 0)),
    ],
)
async def test_a_record_is_read_as_it_was_written(tmp_path, record):
    async with recorder(tmp_path) as one:
        one.request(record)
    (tmp_path / "scrapes.jsonl.gz").unlink()
    assert list(read_requests(tmp_path)) == [record]


async def test_a_temperature_that_could_not_be_read_stays_unknown(tmp_path):
    async with recorder(tmp_path) as one:
        one.request(record_of(temperature=math.nan))
    (line,) = lines_of(tmp_path, "requests")
    assert line["temperature"] == "nan"  # JSON has no such number
    (read,) = read_requests(tmp_path)
    assert math.isnan(read.temperature)


async def test_the_final_usage_is_not_a_chunk_with_tokens(tmp_path):
    async with recorder(tmp_path) as one:
        one.request(record_of(path="/v1/completions", event_offsets=(0.25, 0.5, 0.75)))
    (line,) = lines_of(tmp_path, "requests")
    assert line["chunks"] == [0.25, 0.5]


async def test_a_disk_that_fails_leaves_what_was_written(tmp_path):
    log = Log()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with recorder(tmp_path, every=0.01, log=log) as one:
        one.request(record_of())
        async with asyncio.timeout(120):
            while not one.written:
                await asyncio.sleep(0.005)
        resource.setrlimit(resource.RLIMIT_FSIZE, (one.written + 10, before[1]))
        try:
            one.request(record_of())
            async with asyncio.timeout(120):
                while not log.lines:
                    await asyncio.sleep(0.005)
            one.request(record_of())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log.lines == ["cannot write the recording; recording stops, the sidecar continues"]
    assert list(read_requests(tmp_path)) == [record_of()]


async def test_the_event_loop_never_encodes_nor_writes(tmp_path):
    threads = set()

    class Page(bytes):
        def decode(self, **options):
            threads.add(threading.current_thread())
            return super().decode(**options)

    async with recorder(tmp_path, every=0.005) as one:
        one.page(1.0, 2.0, Page(b"during\n"))
        async with asyncio.timeout(120):
            while not one.written:
                await asyncio.sleep(0.005)
        one.page(2.0, 3.0, Page(b"at the end\n"))
    assert threads
    assert threading.main_thread() not in threads
    assert [line["text"] for line in lines_of(tmp_path, "scrapes")] == ["during\n", "at the end\n"]


async def test_what_waits_for_the_disk_is_bounded(tmp_path):
    async with recorder(tmp_path, every=3600) as one:
        many = record_of(event_offsets=(0.25,) * 16_384, stream_events=16_384)
        for _ in range(100):
            one.request(many)
        for _ in range(20):
            one.page(1.0, 2.0, b"#" * 8 * 1024 * 1024)
        assert (one.requests, one.scrapes) == (60, 8)
        assert one.dropped == 40 + 12
