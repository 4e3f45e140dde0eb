"""Accepting connections with no descriptor left."""

import asyncio
import errno
import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from sidecar.accept_loop import AcceptLoop

CLIENTS = 40
SPARE = 8  # descriptors that the process may open
PAUSE = 0.05


class Lines:
    """A log, and what is counted beside it."""

    def __init__(self):
        self.events = []

    def info(self, event, **_):
        self.events.append(event)

    warning = info


async def serve(listener):
    """Accepts until every client was, closing one connection now and then; tells what happened."""
    import resource

    held, log, pauses, loop = [], Lines(), [], asyncio.get_running_loop()
    accepted = 0

    def take(connection):
        nonlocal accepted
        accepted += 1
        held.append(connection)

    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + SPARE, used + SPARE))
    begun = loop.time()
    accepting = AcceptLoop(listener, take, lambda: pauses.append(loop.time()), log, PAUSE)
    while len(pauses) < 3:
        await asyncio.sleep(0.01)
    waited, first = list(log.events), accepted
    while "accepting connections again" not in log.events:
        while held:
            held.pop().close()
        await asyncio.sleep(0.01)
    most = (loop.time() - begun) / PAUSE + 1
    accepting.close()
    return {"waited": waited, "first": first, "accepted": accepted, "pauses": len(pauses), "most": most,
            "events": log.events}  # fmt: skip


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_it_pauses_with_one_line_and_goes_on_when_there_are_descriptors(kind):
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS))
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        run = subprocess.run(
            [sys.executable, "-m", "tests.test_accept_loop", kind, str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[listener.fileno()], capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["waited"] == ["cannot accept connections"]
    assert 0 < found["first"] < CLIENTS
    assert found["accepted"] == CLIENTS
    assert 3 <= found["pauses"] <= found["most"]
    assert found["events"] == ["cannot accept connections", "accepting connections again"]


class Exhausted(socket.socket):
    """A listener of a process without a descriptor left."""

    def accept(self):
        raise OSError(errno.EMFILE, "Too many open files")


async def test_closing_ends_a_pause_that_has_begun_twice():
    loop, failures, pauses = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    listener = Exhausted()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    accepting = AcceptLoop(listener, lambda connection: connection.close(), lambda: pauses.append(1), Lines(), PAUSE)
    for _ in range(2):
        accepting.accept_pending()
    accepting.close()
    accepting.close()
    assert listener.fileno() == -1
    ended = asyncio.Event()
    loop.call_later(2 * PAUSE, ended.set)  # after the timers of both pauses
    await ended.wait()
    assert len(pauses) == 2
    assert not failures


async def test_a_pause_keeps_connections_waiting_until_it_ends():
    accepted = []

    def take(connection):
        accepted.append(connection)
        accepting.pause(3600)

    with ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        accepting = AcceptLoop(listener, take, lambda: None, Lines())
        for _ in range(3):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        for number in (1, 2, 3):
            async with asyncio.timeout(60):
                while not accepted:
                    await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(accepted) == number
            accepting.accept_pending()
        accepting.close()
        for connection in accepted:
            connection.close()


if __name__ == "__main__":
    factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        sys.stdout.write(json.dumps(runner.run(serve(socket.socket(fileno=int(sys.argv[2]))))))
