"""No input costs more than its size: twice as much of a hostile input takes at most about twice the CPU time.

Quadratic code takes four times as much. The measure is this process's CPU time, the least of several runs, so that
other processes do not affect it.
"""

import time
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.names import wanted
from sidecar.errors import PageError, Refusal
from sidecar.requests.middleware.event_receiver import EventReceiver, _Sender
from sidecar.requests.middleware.wire import VERSION
from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.observe.payload import read_reply, read_request
from sidecar.requests.observe.stream import StreamReader
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.proxy.framing import ChunkedDecoder
from sidecar.requests.proxy.head import HeadReader
from sidecar.requests.proxy.request import parse_request
from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.refusal import ExportRefused
from tests.requests.requests_tools import SSE, chunk

MOST = 3.0
CLOCK = 0.001  # seconds; differences below it say nothing
RUNS = 7


class Sink:
    def started(self, _): ...
    def finished(self, _): ...
    def dropped(self, *_): ...


def page(line):
    return whole(_page, lambda size: b"".join(line % number for number in range(size // len(line % 0))))


def _page(body):
    with suppress(PageError):
        PageReader(wanted(), PageLimits()).read(body)


def whole(read, make):
    """``read`` of all that ``make`` gives for a size."""
    return lambda size: partial(read, make(size))


def pieces(start, piece, step):
    """``start()`` gives what takes the input, ``step`` bytes at a time."""

    def prepare(size):
        data = piece * (size // len(piece))
        parts = [data[at : at + step] for at in range(0, len(data), step)]

        def run():
            take = start()
            with suppress(Refusal):
                for part in parts:
                    take(part)

        return run

    return prepare


def repeated(piece, beginning=b"", end=b""):
    return lambda size: beginning + piece * (size // len(piece)) + end


def stream():
    return StreamReader(CHAT, max_bytes=1 << 20, clock=lambda: 0.0).feed


def asked():
    stream = UsageAsker(AskUsage.ALWAYS, max_bytes=1 << 20).ask(CHAT, b'{"stream":true,"messages":[]}')
    stream.refused(200, SSE)
    return stream.forward


def head():
    return HeadReader(1 << 24).feed


def chunked():
    return ChunkedDecoder(bounded=True).decode


def request(body):
    read_request(CHAT, body)


def parsed(lines):
    with suppress(Refusal):
        parse_request(b"GET / HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n", b"x")


def exported(spans):
    def read(body):
        with suppress(ExportRefused):
            for _ in spans(body, 10_000):
                pass

    return read


def packets(size):
    """Starts of requests, none of which ends; ids as long as may be."""
    found = []
    for number in range(size // 2048):
        started = [{"id": f"{number}-{one}".rjust(60), "start": 1.0} for one in range(20)]
        packet = {"version": VERSION, "dropped": {}, "started": started, "finished": []}
        found.append(msgspec.msgpack.encode(packet))

    def run():
        receiver, sender = EventReceiver("/nowhere", Sink()), _Sender(1)
        for packet in found:
            receiver._buffer[: len(packet)] = packet
            assert receiver._take(sender, len(packet))

    return run


EVENT = chunk()
RESOURCES = b'{"resourceSpans":['
KIB, MIB = 1024, 1024 * 1024
COSTS = {
    "page-new-samples": (page(b'vllm:x{a="%d"} 1\n'), 128 * KIB),
    "page-wanted-samples": (page(b'vllm:num_requests_running{engine="%d",model_name="m"} 1\n'), 128 * KIB),
    "page-escapes": (page(b'vllm:num_requests_running{a="%d\\\\\\n\\""} 1\n'), 128 * KIB),
    "page-types": (page(b"# TYPE vllm:x%d gauge\n"), 256 * KIB),
    "page-without-braces": (page(b'vllm:num_requests_running{a="%d",\n'), 128 * KIB),
    "request-brackets": (whole(request, repeated(b"[", b'{"messages":')), MIB),
    "request-keys": (whole(request, repeated(b'"temperature":1,', b"{", b'"a":1}')), MIB),
    "request-escapes": (whole(request, repeated(b"\\u0041", b'{"model":"', b'"}')), MIB),
    "reply-choices": (whole(read_reply, repeated(b'{"index":0},', b'{"choices":[', b"{}]}")), MIB),
    "stream-events": (pieces(stream, EVENT, 65_536), MIB),
    "stream-bytes": (pieces(stream, EVENT, 1), 32 * KIB),
    "stream-one-event": (pieces(stream, b"data: x", 16), 256 * KIB),
    "stream-empty-events": (pieces(stream, b"\n\n", 65_536), MIB),
    "asked-events": (pieces(asked, EVENT, 65_536), 256 * KIB),
    "asked-bytes": (pieces(asked, EVENT, 1), 32 * KIB),
    "asked-one-event": (pieces(asked, b"data: x", 16), 256 * KIB),
    "head-bytes": (pieces(head, b"a", 1), 32 * KIB),
    "head-lines": (pieces(head, b"a: b\r\n", 6), 128 * KIB),
    "head-of-lines": (whole(parsed, repeated(b"Connection: a\r\n")), 256 * KIB),
    "head-of-options": (whole(parsed, repeated(b"Connection: " + b"a," * 500 + b"b\r\n")), 64 * KIB),
    "chunks-whole": (pieces(chunked, b"40\r\n" + b"x" * 64 + b"\r\n", 32_768), MIB),
    "chunks-bytes": (pieces(chunked, b"40\r\n" + b"x" * 64 + b"\r\n", 1), 32 * KIB),
    "packets": (packets, 256 * KIB),
    "otlp-empty": (whole(exported(protobuf_spans), repeated(b"\x0a\x00")), 32 * KIB),
    "otlp-unknown": (whole(exported(protobuf_spans), repeated(b"\x18\x01")), 32 * KIB),
    "otlp-json": (
        whole(exported(json_spans), repeated(b'{"resource":{}},    ', b'{"resourceSpans":[', b"{}]}")),
        64 * KIB,
    ),
}


def cost(run):
    before = time.process_time()
    run()
    return time.process_time() - before


@pytest.mark.parametrize("name", COSTS)
def test_twice_the_input_costs_twice_the_time(name):
    prepare, size = COSTS[name]
    once, twice = prepare(size), prepare(2 * size)
    costs = [(cost(once), cost(twice)) for _ in range(RUNS)]  # in turn, as the machine may change between them
    assert min(long for _, long in costs) < MOST * min(short for short, _ in costs) + CLOCK
