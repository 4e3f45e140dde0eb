"""What the benchmark's upstream and its client agree on."""

CHUNK_SECONDS = 0.02  # 50 chunks a second and stream
EVENT = b'data: {"t":%019d,"n":%07d,"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,'
EVENT += (
    b'"model":"a-model","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
MARK = b'data: {"t":'
TIME = slice(len(MARK), len(MARK) + 19)
NUMBER = slice(TIME.stop + 5, TIME.stop + 12)

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_REQUEST_BYTES = 200
JSON_REPLY = b'{"id":"cmpl-1","choices":[{"text":"' + b"x" * 980 + b'"}]}'
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(JSON_REPLY)


def post(path: str, body: bytes) -> bytes:
    """A request as an OpenAI client sends it."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nUser-Agent: benchmark\r\nAuthorization: Bearer none\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
