"""Spans made to order, a sink that remembers, and a running receiver."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.requests.traces.otlp_receiver import OtlpReceiver, TracesOptions

RECORDED = sorted((Path(__file__).parents[2] / "data" / "traces").glob("*.pb"))
RECORDED_JSON = Path(__file__).parents[2] / "data" / "traces" / "llm_request-01.json"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
GZIP = {"Content-Encoding": "gzip"}
START = 1_795_165_523.25  # of every span made here; Unix seconds

# What vLLM 0.32 sends of a request at temperature 0.7.
USUAL = {
    "gen_ai.latency.time_to_first_token": 0.25,
    "gen_ai.latency.e2e": 1.5,
    "gen_ai.usage.prompt_tokens": 142,
    "gen_ai.usage.completion_tokens": 95,
    "gen_ai.request.id": "cmpl-aa22d559aceea89a-0",
    "gen_ai.request.top_p": 1.0,
    "gen_ai.request.max_tokens": 95,
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.n": 1,
}


def attributes(**changes):
    """``USUAL`` with changes; a key's last part stands for the key, None removes it."""
    known = {name.rsplit(".", 1)[1]: name for name in USUAL}
    changed = USUAL | {known[short]: value for short, value in changes.items()}
    return {name: value for name, value in changed.items() if value is not None}


def made(number=1, *, name="llm_request", start=START, end=START + 1.5, values=None):
    """A span; ``number`` makes its id."""
    span = Span(name=name, trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
    span.start_time_unix_nano, span.end_time_unix_nano = (round(at * 1000) * 10**6 for at in (start, end))
    for key, value in (USUAL if values is None else values).items():
        pair = span.attributes.add(key=key)
        kind = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        setattr(pair.value, kind, value)
    return span


def export(*spans):
    """An export of all ``spans``, with a resource around them as vLLM has it."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "vllm"
    scope = group.scope_spans.add()
    scope.scope.name = "vllm.tracing.otel"
    scope.spans.extend(spans)
    return request


def body(*spans):
    return export(*spans).SerializeToString()


def otlp_json(request):
    """An export in OTLP's JSON: like proto3's, but ids in hex and enums as numbers."""
    tree = json_format.MessageToDict(request, use_integers_for_enums=True)
    for group, tree_group in zip(request.resource_spans, tree["resourceSpans"], strict=True):
        for scope, tree_scope in zip(group.scope_spans, tree_group["scopeSpans"], strict=True):
            for span, tree_span in zip(scope.spans, tree_scope["spans"], strict=True):
                tree_span["traceId"], tree_span["spanId"] = span.trace_id.hex(), span.span_id.hex()
    return tree


class Sink:
    def __init__(self):
        self.records = []
        self.drops = Counter()

    def started(self, request):
        raise AssertionError("traces know only ends")

    def finished(self, record):
        self.records.append(record)

    def dropped(self, reason, count):
        self.drops[reason] += count


class Running:
    """A receiver on a free port and a client for it."""

    def __init__(self, receiver, sink, address, session):
        self.receiver, self.sink, self.address, self.session = receiver, sink, address, session
        self.url = "http://{}:{}/v1/traces".format(*address)

    async def post(self, data, headers=PROTOBUF):
        """Status, headers and body of the answer."""
        async with self.session.post(self.url, data=data, headers=headers) as response:
            return response.status, response.headers, await response.read()


@asynccontextmanager
async def receiving(*, clock=lambda: START + 10, **options):
    sink = Sink()
    receiver = OtlpReceiver(sink, TracesOptions(**options), clock=clock)
    address = await receiver.start("127.0.0.1", 0)
    # No compression of its own and no decoding: bodies go out as the test made them.
    async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(20)) as session:
        try:
            yield Running(receiver, sink, address, session)
        finally:
            await receiver.stop()


async def until(condition, seconds=10.0):
    """Waits for a condition; fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come"
        await asyncio.sleep(0.005)
