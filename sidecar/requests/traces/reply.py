"""What the receiver answers: OTLP's responses and google.rpc.Status, each in the request's encoding."""

import json
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"

_REFUSED: Final = "spans whose times, counts or ids can't be true were refused"


def accepted(media_type: str, refused: int) -> web.Response:
    """200; ``refused`` spans are named as a partial success."""
    if media_type == PROTOBUF:
        response = ExportTraceServiceResponse()
        if refused:
            response.partial_success.rejected_spans = refused
            response.partial_success.error_message = _REFUSED
        return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)
    # In OTLP's JSON a 64-bit integer is a string.
    partial = {"partialSuccess": {"rejectedSpans": str(refused), "errorMessage": _REFUSED}} if refused else {}
    return web.Response(body=json.dumps(partial).encode(), content_type=JSON)


def failure(
    media_type: str, status: int, code: int, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An error: a google.rpc.Status with gRPC's ``code`` and ``message``, which is ASCII of less than 128 bytes."""
    if media_type == PROTOBUF:
        text = message.encode("ascii")
        body = bytes((0x08, code, 0x12, len(text))) + text  # fields 1 (a varint) and 2 (a string) of google.rpc.Status
    else:
        body = json.dumps({"code": code, "message": message}).encode()
    return web.Response(status=status, body=body, content_type=media_type or JSON, headers=headers)
