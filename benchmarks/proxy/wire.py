"""What the benchmark's upstream and its client agree on."""

MODEL = b"meta-llama/Llama-3.1-8B-Instruct"  # as on the page of metrics
CHUNK_SECONDS = 0.02  # 50 chunks a second and stream
EVENT = b'data: {"t":%019d,"n":%07d,"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,'
EVENT += b'"model":"' + MODEL + b'","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
MARK = b'data: {"t":'
TIME = slice(len(MARK), len(MARK) + 19)
NUMBER = slice(TIME.stop + 5, TIME.stop + 12)

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_USAGE = b'data: {"id":"cmpl-0","model":"' + MODEL
STREAM_USAGE += b'","choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}\n\n'
JSON_REPLY = b'{"id":"cmpl-1","model":"' + MODEL + b'","choices":[{"text":"' + b"x" * 880
JSON_REPLY += b'"}],"usage":{"prompt_tokens":8,"completion_tokens":200}}'
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(JSON_REPLY)
PAGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def completion(max_tokens: int, *, stream: bool) -> bytes:
    """A request as an OpenAI client sends it, with a body of about 200 bytes."""
    body = b'{"model":"%b","prompt":"%b","temperature":0.7,"stream":%b,"max_tokens":%7d}' % (
        MODEL,
        b"x" * 90,
        b"true" if stream else b"false",
        max_tokens,
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nUser-Agent: benchmark\r\nAuthorization: Bearer none\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
