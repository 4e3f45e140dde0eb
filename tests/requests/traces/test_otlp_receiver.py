"""The receiver as its senders see it: a real server on a port of its own."""

import asyncio
import gzip
import json
import logging
import random
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from sidecar.requests.traces.body import gunzipped
from sidecar.requests.traces.refusal import ExportRefused
from tests.requests.traces.spans import (
    GZIP,
    JSON,
    PROTOBUF,
    RECORDED,
    RECORDED_JSON,
    USUAL,
    attributes,
    body,
    export,
    made,
    otlp_json,
    receiving,
)

LATER = 1_795_200_000.0  # after everything recorded


def answer(data):
    return ExportTraceServiceResponse.FromString(data)


def message(data):
    """The message of a google.rpc.Status: field 2, after the code in field 1."""
    assert data[0] == 0x08
    assert data[2] == 0x12
    assert len(data) == 4 + data[3]
    return data[4:].decode()


async def test_all_recorded_exports_decode_in_every_encoding():
    seen = []
    for headers, pack in ((PROTOBUF, bytes), (PROTOBUF | GZIP, gzip.compress)):
        async with receiving(clock=lambda: LATER) as running:
            for path in RECORDED:
                status, reply, data = await running.post(pack(path.read_bytes()), headers)
                assert (status, reply["Content-Type"], data) == (200, "application/x-protobuf", b"")
            seen.append(running.sink.records)
            assert not running.sink.drops
    assert len(seen[0]) == 43
    assert seen[0] == seen[1]


async def test_json_is_answered_in_json():
    async with receiving(clock=lambda: LATER) as running:
        status, reply, data = await running.post(
            RECORDED_JSON.read_bytes(), {"Content-Type": "application/json; charset=utf-8"}
        )
        assert (status, reply["Content-Type"], json.loads(data)) == (200, "application/json", {})
        from_json = running.sink.records
    async with receiving(clock=lambda: LATER) as running:
        await running.post(RECORDED[0].read_bytes())
        for one, other in zip(running.sink.records, from_json, strict=True):
            assert replace(one, id=other.id) == other
        assert [r.completion_tokens for r in from_json] == [95, 126]


async def test_an_empty_export_is_fine():
    async with receiving() as running:
        assert (await running.post(b""))[0] == 200
        assert (await running.post(b"{}", JSON))[0] == 200


async def test_spans_of_other_services_are_not_counted_as_dropped():
    async with receiving() as running:
        await running.post(body(made(1, name="GET /health"), made(2), made(3, name="SELECT")))
        assert len(running.sink.records) == 1
        assert not running.sink.drops


async def test_repeated_spans_are_delivered_once():
    async with receiving() as running:
        first, second = body(made(1), made(2)), body(made(2), made(3), made(3))
        for export_body in (first, second, first):
            assert (await running.post(export_body))[0] == 200
        assert [r.id[-1] for r in running.sink.records] == ["1", "2", "3"]


async def test_the_memory_of_spans_is_bounded_and_forgets_the_oldest():
    async with receiving(recent_spans=3) as running:
        for number in (1, 2, 3, 4, 2, 3, 4, 1):
            await running.post(body(made(number)))
        assert [r.id[-1] for r in running.sink.records] == ["1", "2", "3", "4", "1"]
        assert len(running.receiver._recent) == 3


async def test_choices_of_one_request_are_a_record_each():
    """A V1 engine sends n spans with one request id; they are no duplicates."""
    async with receiving() as running:
        await running.post(body(made(1), made(2), made(3)))
        assert [(r.choices, r.completion_tokens) for r in running.sink.records] == [(1, 95)] * 3


async def test_refused_spans_are_reported_and_the_rest_is_taken():
    odd = attributes(completion_tokens=-5)
    async with receiving() as running:
        status, _, data = await running.post(body(made(1), made(2, values=odd), made(3, values=odd)))
        assert status == 200
        assert answer(data).partial_success.rejected_spans == 2
        assert answer(data).partial_success.error_message
        assert running.sink.drops == {"inconsistent": 2}
        text = json.dumps(otlp_json(export(made(4), made(5, values=odd))))
        status, _, data = await running.post(text.encode(), JSON)
        assert json.loads(data)["partialSuccess"]["rejectedSpans"] == "1"
        assert len(running.sink.records) == 2


async def test_a_late_span_is_accepted():
    async with receiving(clock=lambda: LATER + 3600) as running:
        await running.post(body(made()))
        assert len(running.sink.records) == 1


async def test_a_truncated_export_is_malformed_and_nothing_of_it_delivered():
    async with receiving() as running:
        whole = body(*(made(n) for n in range(1, 9)))
        status, reply, data = await running.post(whole[:-3])
        assert (status, reply["Content-Type"]) == (400, "application/x-protobuf")
        assert "ExportTraceServiceRequest" in message(data)
        assert running.sink.records == []
        assert running.sink.drops == {"malformed": 1}


async def test_malformed_json_is_refused_in_json():
    async with receiving() as running:
        status, reply, data = await running.post(b'{"resourceSpans": [', JSON)
        assert (status, reply["Content-Type"]) == (400, "application/json")
        assert json.loads(data)["code"] == 3


@pytest.mark.parametrize("pack", [lambda b: b, lambda b: gzip.compress(b)[:-9], lambda b: gzip.compress(b) + b"junk"])
async def test_truncated_gzip_is_malformed(pack):
    async with receiving() as running:
        assert (await running.post(pack(body(made())), PROTOBUF | GZIP))[0] == 400
        assert running.sink.records == []


async def test_gzip_of_several_members_is_one_body():
    async with receiving() as running:
        packed = gzip.compress(body(made(1))) + gzip.compress(body(made(2)))
        assert (await running.post(packed, PROTOBUF | GZIP))[0] == 200
        assert len(running.sink.records) == 2


async def test_gzip_of_more_members_than_any_sender_writes_is_refused():
    async with receiving() as running:
        packed = gzip.compress(body(made(1))) + gzip.compress(b"") * 15
        assert (await running.post(packed, PROTOBUF | GZIP))[0] == 200
        assert (await running.post(packed + gzip.compress(b""), PROTOBUF | GZIP))[0] == 413
        assert len(running.sink.records) == 1


def test_members_cost_no_more_for_their_bytes_than_one_of_noise():
    """CPU per byte, each at its best of three: 4 MB of empty members beside 4 MB of one member."""
    empty = gzip.compress(b"", mtime=0) * 200_000
    noise = gzip.compress(random.Random(1).randbytes(3_900_000), 1)

    def cost(packed):
        begun = time.process_time()
        with suppress(ExportRefused):
            gunzipped(packed, 4 * 1024 * 1024)
        return (time.process_time() - begun) / len(packed)

    assert min(cost(empty) for _ in range(3)) < 10 * min(cost(noise) for _ in range(3))


async def test_wrong_types_and_encodings_are_unsupported():
    async with receiving() as running:
        for headers in (
            {"Content-Type": "text/plain"},
            {"Content-Type": ""},
            PROTOBUF | {"Content-Encoding": "deflate"},
            JSON | {"Content-Encoding": "zstd"},
        ):
            assert (await running.post(body(made()), headers))[0] == 415
        assert running.sink.drops == {"unsupported": 4}


async def test_other_paths_and_methods_are_refused():
    async with receiving() as running:
        async with running.session.get(running.url) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
        async with running.session.post(running.url + "/x", data=b"", headers=PROTOBUF) as response:
            assert response.status == 404


async def test_a_body_over_the_limit_is_too_large_announced_or_not():
    async def chunks():
        for _ in range(20):
            yield bytes(1000)

    async with receiving(body_bytes=10_000) as running:
        assert (await running.post(bytes(10_001)))[0] == 413
        assert (await running.post(chunks()))[0] == 413
        assert running.sink.drops == {"too_large": 2}
        assert (await running.post(body(made())))[0] == 200


async def test_many_small_chunks_are_refused():
    async def chunks(size, number):
        for _ in range(number):
            yield bytes(size)

    async with receiving() as running:
        assert (await running.post(chunks(1, 1001)))[0] == 400
        assert running.sink.drops == {"malformed": 1}
        assert (await running.post(chunks(1, 1000)))[0] == 200
        assert (await running.post(chunks(64, 2000)))[0] == 200


async def test_a_gzip_bomb_ends_at_the_limit():
    bomb = gzip.compress(bytes(100_000_000))
    async with receiving() as running:
        assert len(bomb) < 4 * 1024 * 1024
        assert (await running.post(bomb, PROTOBUF | GZIP))[0] == 413
        assert (await running.post(gzip.compress(bytes(2**20)) * 5, PROTOBUF | GZIP))[0] == 413


async def test_more_spans_than_allowed_are_too_large():
    async with receiving(max_spans=5) as running:
        spans = [made(n) for n in range(1, 7)]
        assert (await running.post(body(*spans)))[0] == 413
        assert (await running.post(json.dumps(otlp_json(export(*spans))).encode(), JSON))[0] == 413
        assert running.sink.records == []
        assert (await running.post(body(*spans[:5])))[0] == 200


async def test_nothing_sent_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    secret = USUAL | {"gen_ai.prompt": "hush-hush"}
    async with receiving() as running:
        await running.post(body(made(values=secret)))
        await running.post(body(made(values=secret))[:-1])
        await running.post(b'{"hush-hush', JSON)
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(b"hush-hush / HTTP/1.1\r\nhush-hush\r\n\r\n")
        await reader.read()
        writer.close()
    assert "hush-hush" not in caplog.text
    assert "hush-hush" not in repr(running.sink.records)


def test_no_export_is_answered_with_500():
    chance = random.Random(7)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.binary(max_size=200) | st.just(RECORDED[0].read_bytes()),
        st.sampled_from([PROTOBUF, JSON, PROTOBUF | GZIP, JSON | GZIP, {"Content-Type": "x/y"}]),
        st.booleans(),
    )
    def post(data, headers, packed):
        data = bytearray(data)
        if data and chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        exchanges.append((gzip.compress(bytes(data)) if packed else bytes(data), headers))

    exchanges = []
    post()

    async def run():
        async with receiving(clock=lambda: LATER) as running:
            statuses = {(await running.post(data, headers))[0] for data, headers in exchanges}
            assert statuses == {200, 400, 415}

    asyncio.run(run())
