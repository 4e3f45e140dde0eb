"""The receiver's responses: OTLP's and google.rpc.Status, each in the request's encoding."""

import json
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


def accepted(media_type: str, refused: int) -> web.Response:
    """200; ``refused`` spans are reported as a partial success."""
    response = ExportTraceServiceResponse()
    if refused:
        response.partial_success.rejected_spans = refused
        response.partial_success.error_message = "spans whose times, counts or ids cannot be true were refused"
    is_json = media_type == JSON
    body = json_format.MessageToJson(response).encode() if is_json else response.SerializeToString()
    return web.Response(body=body, content_type=media_type)


def failure(media_type: str, status: int, code: int, message: str, headers: Mapping[str, str]) -> web.Response:
    """An error: a google.rpc.Status with gRPC's ``code`` and ``message``, ASCII of less than 128 bytes."""
    if media_type == PROTOBUF:
        text = message.encode("ascii")
        body = bytes((0x08, code, 0x12, len(text))) + text  # fields 1 (a varint) and 2 (a string) of google.rpc.Status
    else:
        media_type, body = JSON, json.dumps({"code": code, "message": message}).encode()
    return web.Response(status=status, body=body, content_type=media_type, headers=headers)
