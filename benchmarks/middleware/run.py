"""What the middleware adds to a request and to a streamed chunk, and whether events get lost.

    .venv/bin/python -m benchmarks.middleware.run

Prints a Markdown table; exits with 1 where a bar is missed. The bare application and the observed one take turns within
one run, a receiver in its own process takes the events, and the medians of the rounds are compared.
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

from sidecar.requests.middleware.asgi import App, Message, ObserveRequests
from sidecar.requests.middleware.event_receiver import EventReceiver
from sidecar.requests.record import RequestRecord, RequestStart

ROUNDS = 11
REQUESTS = 1_000
CHUNKS = 2_000
BURST = 256
BARS = {"request": 10.0, "chunk": 0.2}  # µs

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
    opening, token, usage = event({"role": "assistant", "content": ""}), event({"content": " word"}), event(None)
    events = [opening, *[token] * chunks, usage, b"data: [DONE]\n\n"]

    async def app(_scope: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for one in events:
            await send({"type": "http.response.body", "body": one, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


REPLY = reply_body()


async def receive() -> Message:
    return {"type": "http.request", "body": REQUEST, "more_body": False}


async def send(_message: Message) -> None:
    return None


async def timed(app: App, times: int) -> float:
    """Microseconds of CPU a call, the sending of its events included: they leave while it sleeps."""
    began = time.thread_time()
    for _ in range(times):
        await app(SCOPE, receive, send)
    await asyncio.sleep(0.12)
    return (time.thread_time() - began) / times * 1e6


async def added(app: App, times: int) -> tuple[float, float]:
    """Microseconds that the middleware adds to one call, and that the bare call takes: medians of the rounds."""
    observed = ObserveRequests(app)
    bare, seen = [], []
    for _ in range(ROUNDS):
        bare.append(await timed(app, times))
        seen.append(await timed(observed, times))
    return statistics.median(seen) - statistics.median(bare), statistics.median(bare)


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


async def measure() -> list[tuple[str, str, str, bool]]:
    request, bare_request = await added(plain, REQUESTS)
    short, _ = await added(streaming(1), REQUESTS)
    long, bare_long = await added(streaming(CHUNKS), 20)
    chunk = (long - short) / (CHUNKS - 1)
    return [
        ("added to a request, µs", f"{request:.2f} (bare {bare_request:.2f})", "10", request <= BARS["request"]),
        ("added to a short streamed request, µs", f"{short:.2f}", "none", True),
        (
            "added to a streamed chunk, µs",
            f"{chunk:.3f} (bare {bare_long / CHUNKS:.3f})",
            "0.2",
            chunk <= BARS["chunk"],
        ),
    ]


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
        observed = ROUNDS * (2 * REQUESTS + 20)
        complete = starts == ends == observed and lost == 0
        rows.append(("events of all that", f"{ends} of {observed}, {lost} dropped", "all", complete))
        ends, lost = asyncio.run(burst(f"{folder}/burst.sock"))
        rows.append((f"ends of a burst of {BURST}", f"{ends}, {lost} dropped", f"{BURST}", ends == BURST and lost == 0))
    print("| what | measured | bar | |\n|---|---|---|---|")
    for what, value, bar, met in rows:
        print(f"| {what} | {value} | {bar} | {('met' if met else 'MISSED') if bar != 'none' else ''} |")
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
