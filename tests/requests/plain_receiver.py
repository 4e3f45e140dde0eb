"""A receiver for the plug-in that shares no code with the sidecar's.

It checks the plug-in's counts against vLLM's own.
"""

import json
import socket
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

OUTCOMES = ("stopped", "length", "repetition", "aborted", "error")
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")
STEPS = (
    "steps", "seconds", "decodes", "request_seconds", "tokens", "prefill_tokens", "context_tokens",
    "drafts",
)  # fmt: skip
FINISHED = (
    "temperature", "bits", "adapter", "prompt_tokens", "cached_tokens", "output_tokens", "outcome",
    "ending", "drafts", "draft_tokens", "accepted_tokens", "arrival", "first_token", "last_token",
)  # fmt: skip
PARAMETERS = {8: "min_p", 16: "logit_bias"}
OWN = 32


@dataclass
class SchedulerLife:
    """One life of one scheduler, as far as the plug-in reported it."""

    hello: dict = field(default_factory=dict)
    hellos: int = 0
    end: dict = field(default_factory=dict)
    lost: int = 0
    reports: int = 0  # whole ones that changed a total
    cuts: int = 0  # whole ones
    packets: int = 0
    rows: list = field(default_factory=list)  # finished requests, as they came
    cells: dict = field(default_factory=dict)  # numbers by temperature, bits, prompt and adapter
    steps: dict = field(default_factory=dict)  # by decodes, context and whether they are mixed
    arriving: dict = field(default_factory=dict)

    @property
    def done(self):
        """Finished requests."""
        return [_finished(row) for row in self.rows]

    @property
    def state(self):
        return self.hello.get("state")

    @property
    def tables(self):
        """What was counted, by what it is counted by, then by key."""
        tables = defaultdict(dict)
        for key, numbers in self.cells.items():
            for name, part in _keys(*key).items():
                row = tables[name].get(part, {})
                tables[name][part] = _added(row, _row(numbers, positions=name == "temperature"))
        tables["steps"] = {
            key: dict(zip(STEPS, numbers, strict=True)) for key, numbers in self.steps.items()
        }
        names = (*OUTCOMES, *COUNTS)
        tables["ending"] = {
            ending: dict(zip(names, numbers, strict=True))
            for ending, numbers in self.end.get("endings", {}).items()
            if any(numbers)
        }
        return tables

    @property
    def total(self):
        """All cells together."""
        total = {}
        for numbers in self.cells.values():
            total = _added(total, _row(numbers))
        return total

    def sums(self, table):
        """Requests, drafts, draft tokens and accepted tokens over the table's rows."""
        rows = self.tables[table].values()
        requests = sum(row[outcome] for row in rows for outcome in OUTCOMES)
        return (requests, *(sum(row[name] for row in rows) for name in COUNTS))

    def totals(self):
        """Drafts, draft tokens and accepted tokens."""
        total = self.total
        return tuple(total.get(name, 0) for name in COUNTS)

    def finished(self):
        """The same as ``sums``, over the finished requests."""
        return (len(self.done), *(sum(request[name] for request in self.done) for name in COUNTS))


def sampling(temperature, bits):
    if temperature is None:
        return None
    if temperature == 0:
        return "greedy"
    return "penalties" if bits & 4 else "filtered" if bits & 2 else "plain"


def _keys(temperature, bits, prompt, adapter):
    if prompt is None:  # too many combinations: only the temperature is known
        others = dict.fromkeys(("prompt_tokens", "output", "sampling", "adapter"), "other")
        return {"temperature": temperature, **others}
    return {
        "temperature": temperature,
        "prompt_tokens": prompt,
        "output": "structured" if bits & 1 else "free",
        "sampling": sampling(temperature, bits),
        "adapter": adapter or "",
    }


def _row(numbers, *, positions=False):
    half = (len(numbers) - len(OUTCOMES)) // 2
    drafted, accepted = numbers[len(OUTCOMES) :][:half], numbers[len(OUTCOMES) + half :]
    row = dict(zip(OUTCOMES, numbers, strict=False)) | {
        "drafts": sum(drafted),
        "draft_tokens": sum(length * number for length, number in enumerate(drafted)),
        "accepted_tokens": sum(length * number for length, number in enumerate(accepted)),
    }
    if positions:
        row["drafted_at"] = [sum(drafted[position:]) for position in range(1, half)]
        row["accepted_at"] = [sum(accepted[position:]) for position in range(1, half)]
    return row


def _added(row, more):
    return {
        name: [*map(sum, zip(row[name], number, strict=True))]
        if isinstance(number, list)
        else row[name] + number
        for name, number in more.items()
    } if row else more  # fmt: skip


def _finished(row):
    request = dict(zip(FINISHED, row, strict=True))
    bits = request.pop("bits")
    return request | {
        "structured": bool(bits & 1),
        "sampling": sampling(request["temperature"], bits),
        "parameters": [name for bit, name in PARAMETERS.items() if bits & bit],
        "is_own": bool(bits & OWN),
    }


def _falls(before, after):
    return any(new < old for old, new in zip(before, after, strict=True))


class PlainReceiver:
    """Listens at a path, in threads; keeps the latest of each cell, by the scheduler's ``start``.

    Packets are processed as a whole: ``until`` never sees part of one.
    """

    def __init__(self, path, mode=0o666):
        self._taking = threading.RLock()
        self.path, self.lives = path, {}
        self._reading = []  # sockets and the threads that read and close them; the listener first
        self.fallen = 0  # cells in which a number decreased
        self._listen(mode)

    def _listen(self, mode):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.path))
        self.path.chmod(mode)
        listener.listen(16)
        self._start(self._accept, listener)

    def _start(self, work, connection):
        thread = threading.Thread(target=work, args=(connection,), daemon=True)
        self._reading.append((connection, thread))
        thread.start()

    def _accept(self, listener):
        with listener, suppress(OSError):
            while True:
                self._start(self._read, listener.accept()[0])

    def _read(self, connection):
        life = None
        with connection, suppress(OSError):
            while packet := connection.recv(131_073):
                assert len(packet) <= 131_072
                with self._taking:
                    life = self._take(json.loads(packet), life)

    def _take(self, packet, life):
        assert packet["v"] == 4
        if hello := packet.get("hello"):
            life = self.lives.setdefault(hello["start"], SchedulerLife())
            life.hello = hello
            life.hellos += 1
        if report := packet.get("report"):
            self._report(report, life)
        return life

    def _report(self, report, life):
        life.packets += 1
        items = [*report["requests"], *report["steps"], *report["finished"]]
        assert len(items) <= 64
        life.rows += report["finished"]
        for *key, numbers in report["requests"]:
            life.arriving["cells", tuple(key)] = numbers
        for *key, numbers in report["steps"]:
            life.arriving["steps", tuple(key)] = numbers
        if end := report["end"]:
            before = life.total
            for (name, key), numbers in life.arriving.items():
                known = getattr(life, name)
                self.fallen += _falls(known.get(key, [0] * len(numbers)), numbers)
                known[key] = numbers
            life.arriving.clear()
            life.end, life.lost = end, end["lost"]
            life.cuts += 1
            life.reports += life.total != before

    def die(self):
        """Ends like a killed sidecar.

        It leaves no thread that could read from a descriptor reused by another.
        """
        for connection, thread in self._reading:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
        self._reading.clear()

    def live_again(self):
        """Listens again like a restarted sidecar.

        That would remember nothing; this one keeps what it received.
        """
        self._listen(0o666)

    @property
    def only(self):
        """The only life; an empty one before any has said hello."""
        (life,) = self.lives.values() or (SchedulerLife(),)
        return life

    @property
    def total(self):
        return tuple(
            map(sum, zip((0, 0, 0), *(life.totals() for life in self.lives.values()), strict=True))
        )

    def by_temperature(self):
        """Requests that ended, drafts, draft tokens and accepted tokens by hundredths.

        They are summed over all lives.
        """
        sums = {}
        for life in self.lives.values():
            for key, row in life.tables["temperature"].items():
                summed = sums.setdefault(key, Counter())
                summed.update({name: row[name] for name in COUNTS})
                summed["requests"] += sum(row[outcome] for outcome in OUTCOMES)
        return sums

    def until(self, read, expected, seconds=10.0):
        """Waits until ``read()`` gives what is expected; fails after ``seconds`` with both."""
        deadline = time.monotonic() + seconds
        while True:
            with self._taking:
                got = read()
            if got == expected:
                return
            assert time.monotonic() < deadline, (
                f"after {seconds:g} s: expected {expected}, got {got}"
            )
            time.sleep(0.005)
