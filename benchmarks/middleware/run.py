"""What the middleware adds to a request and to a streamed chunk, and whether events get lost.

The bars are ratios, so that they hold on a slower machine: the reference is one ``json.loads`` of the same bytes, timed
in turns with the bare and the observed application. Serving the request costs vLLM far more than that. A receiver in
its own process receives the events.
"""

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.table import Row, report
from sidecar.requests.middleware.asgi import ObserveRequests
from sidecar.requests.middleware.asking import App, Message, Receive
from sidecar.requests.middleware.event_receiver import EventReceiver
from sidecar.requests.record import RequestRecord, RequestStart

ROUNDS = 11
REQUESTS = 1_000
CHUNKS = 2_000
BURST = 256
REQUEST_BAR = 3.0  # times json.loads of the request's and the reply's bodies; 20 µs on the machine of the README
CHUNK_BAR = 0.5  # times json.loads of the chunk; 1 µs there
STREAM_BAR = 6.0  # for a whole stream of five messages
ASKING_BAR = 12.0
ASKING_CHUNK_BAR = 1.2

HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"user-agent", b"OpenAI/Python 2.1.0"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer none"),
    (b"content-length", b"1200"),
]
SCOPE = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": HEADERS}
REQUEST = json.dumps(
    {"model": "lab", "messages": [{"role": "user", "content": "word " * 200}], "temperature": 0.7, "max_tokens": 64}
).encode()
STREAM_REQUEST = REQUEST.replace(b'{"model"', b'{"stream": true, "model"')
SPECULATION = {
    "mean_acceptance_length": 2.3,
    "draft_acceptance_rate": 0.43,
    "acceptance_histogram": [4, 2, 1, 3],
    "num_spec_steps": 10,
    "num_accepted_draft_tokens": 13,
    "num_draft_tokens": 30,
    "num_spec_tokens": 3,
}
USAGE = {"prompt_tokens": 33, "total_tokens": 57, "completion_tokens": 24}


def reply_body() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "length"}
    metrics = {"speculative_decoding": SPECULATION}
    return json.dumps(
        {"id": "chatcmpl-0", "model": "lab", "choices": [choice], "usage": USAGE, "metrics": metrics}
    ).encode()


def event(delta: dict[str, Any] | None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
    chunk: dict[str, Any] = {
        "id": "chatcmpl-8974f82580a82dfe",
        "object": "chat.completion.chunk",
        "created": 1795165946,
    }
    chunk |= {"model": "lab", "choices": choices}
    if delta is None:
        chunk |= {"usage": USAGE, "metrics": {"speculative_decoding": SPECULATION}}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def plain(_scope: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": REPLY})


def streaming(chunks: int) -> App:
    opening, usage = event({"role": "assistant", "content": ""}), event(None)
    events = [opening, *[TOKEN] * chunks, usage, b"data: [DONE]\n\n"]

    async def app(_scope: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for one in events:
            await send({"type": "http.response.body", "body": one, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


REPLY = reply_body()
TOKEN = event({"content": " word"})


async def receive() -> Message:
    return {"type": "http.request", "body": REQUEST, "more_body": False}


async def receive_stream() -> Message:
    return {"type": "http.request", "body": STREAM_REQUEST, "more_body": False}


async def send(_message: Message) -> None:
    return None


async def timed(app: App, times: int, receive: Receive) -> float:
    """Microseconds of CPU per call, including the sending of its events, which happens while it sleeps."""
    began = time.thread_time()
    for _ in range(times):
        await app(SCOPE, receive, send)
    await asyncio.sleep(0.12)
    return (time.thread_time() - began) / times * 1e6


def reference(bodies: list[bytes], times: int) -> float:
    """Microseconds of CPU that ``json.loads`` of these bodies takes."""
    began = time.thread_time()
    for _ in range(times):
        for body in bodies:
            json.loads(body)
    return (time.thread_time() - began) / times * 1e6


async def added(app: App, bodies: list[bytes], times: int, *, ask: bool = False) -> tuple[float, float]:
    """Microseconds that the middleware adds to one call, and those of the reference: medians of the rounds.

    ``ask``: vLLM is asked for usage.
    """
    os.environ["SPECDEC_REQUESTS__ASK_USAGE"] = "any" if ask else "false"
    observed = ObserveRequests(app)
    request = receive_stream if ask else receive
    differences, references = [], []
    for _ in range(ROUNDS):
        bare = await timed(app, times, request)
        differences.append(await timed(observed, times, request) - bare)
        references.append(reference(bodies, times))
    return statistics.median(differences), statistics.median(references)


class Tally:
    """A sink that counts."""

    def __init__(self) -> None:
        self.starts = self.ends = self.lost = 0

    def started(self, _request: RequestStart) -> None:
        self.starts += 1

    def finished(self, record: RequestRecord) -> None:
        self.ends += record.acceptance is not None

    def dropped(self, _reason: str, count: int) -> None:
        self.lost += count


def receive_events(path: str, ready: Any, done: Any, result: Any) -> None:
    """The receiver's process."""

    async def main() -> None:
        tally = Tally()
        receiver = EventReceiver(path, tally)
        await receiver.start()
        ready.set()
        await asyncio.to_thread(done.wait, 120)
        await receiver.stop()
        result.put((tally.starts, tally.ends, tally.lost))

    asyncio.run(main())


async def burst(path: str) -> tuple[int, int]:
    """A burst of requests against a receiver that gets no turn meanwhile: ends delivered, events dropped."""
    tally = Tally()
    receiver = EventReceiver(path, tally)
    await receiver.start()
    os.environ["SPECDEC_MIDDLEWARE__SOCKET"] = path
    observed = ObserveRequests(plain)
    await asyncio.gather(*(observed(SCOPE, receive, send) for _ in range(BURST)))
    await asyncio.sleep(0.5)  # ten times what events wait for
    await receiver.stop()
    return tally.ends, tally.lost


async def measure() -> list[Row]:
    bodies = [REQUEST, REPLY]
    rows = [row("added to a request", await added(plain, bodies, REQUESTS), REQUEST_BAR)]
    for ask, kind in ((False, ""), (True, ", with usage asked for")):
        short, reference_short = await added(streaming(1), bodies, REQUESTS, ask=ask)
        long, decoded = await added(streaming(CHUNKS), [TOKEN.removeprefix(b"data: ")] * CHUNKS, 20, ask=ask)
        chunk = (long - short) / (CHUNKS - 1)
        bars = (ASKING_BAR, ASKING_CHUNK_BAR) if ask else (STREAM_BAR, CHUNK_BAR)
        rows.append(row(f"added to a streamed request of one chunk{kind}", (short, reference_short), bars[0]))
        rows.append(row(f"added to a streamed chunk{kind}", (chunk, decoded / CHUNKS), bars[1]))
    return rows


def row(what: str, measured: tuple[float, float], bar: float) -> Row:
    added_to, decoded = measured
    return Row(f"{what} ÷ json.loads", f"{added_to:.2f} ÷ {decoded:.2f} µs", added_to / decoded, at_most=bar)


def main() -> int:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/events.sock"
        os.environ["SPECDEC_MIDDLEWARE__SOCKET"] = path
        ready, done, result = context.Event(), context.Event(), context.Queue()
        receiver = context.Process(target=receive_events, args=(path, ready, done, result))
        receiver.start()
        ready.wait(30)
        rows = asyncio.run(measure())
        done.set()
        starts, ends, lost = result.get(timeout=30)
        receiver.join(30)
        observed = ROUNDS * (3 * REQUESTS + 40)
        missing = max(observed - starts, observed - ends, lost)
        rows.append(Row("events of all that: missing", f"{ends} of {observed} came", missing, at_most=0))
        ends, lost = asyncio.run(burst(f"{folder}/burst.sock"))
        missing = max(BURST - ends, lost)
        rows.append(Row(f"a burst of {BURST} requests: missing", f"{ends} ends came", missing, at_most=0))
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
