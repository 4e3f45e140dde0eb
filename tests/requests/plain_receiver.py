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

NOT_SUMMED = {"ending", "steps"}  # of the tables: all others sum to the total
OUTCOMES = ("stopped", "length", "repetition", "aborted", "error")
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


@dataclass
class SchedulerLife:
    """One life of one scheduler, as far as the plug-in reported it."""

    hello: dict = field(default_factory=dict)
    hellos: int = 0
    end: dict = field(default_factory=dict)
    total: dict = field(default_factory=dict)
    lost: int = 0
    reports: int = 0
    packets: int = 0
    done: list = field(default_factory=list)  # finished requests
    tables: dict = field(default_factory=lambda: defaultdict(dict))
    since: dict = field(default_factory=dict)  # when a row's key first appeared, by table and key
    arriving: dict = field(default_factory=lambda: defaultdict(dict))

    @property
    def state(self):
        return self.hello.get("state")

    def sums(self, table):
        """Requests, drafts, draft tokens and accepted tokens over the table's rows."""
        rows = self.tables[table].values()
        requests = sum(row[outcome] for row in rows for outcome in OUTCOMES)
        return (requests, *(sum(row[name] for row in rows) for name in COUNTS))

    def totals(self):
        """Drafts, draft tokens and accepted tokens."""
        return tuple(self.total.get(name, 0) for name in COUNTS)

    def finished(self):
        """The same as ``sums``, over the finished requests."""
        return (len(self.done), *(sum(request[name] for request in self.done) for name in COUNTS))


def _falls(before, after):
    numbers = {name: value if isinstance(value, list) else [value] for name, value in after.items()}
    earlier = {
        name: value if isinstance(value, list) else [value] for name, value in before.items()
    }
    return any(
        new < old for name in earlier for old, new in zip(earlier[name], numbers[name], strict=True)
    )


class PlainReceiver:
    """Listens at a path, in threads; keeps the latest of each row, by the scheduler's ``start``.

    Packets are processed as a whole: ``until`` never sees part of one.
    """

    def __init__(self, path, mode=0o666):
        self._taking = threading.RLock()
        self.path, self.lives = path, {}
        self._reading = []  # sockets and the threads that read and close them; the listener first
        self.fallen = 0  # rows in which a number decreased
        self.torn = 0  # reports that are not one cut
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
            while packet := connection.recv(65_537):
                assert len(packet) <= 65_536
                with self._taking:
                    life = self._take(json.loads(packet), life)

    def _take(self, packet, life):
        assert packet["v"] == 3
        if hello := packet.get("hello"):
            life = self.lives.setdefault(hello["start"], SchedulerLife())
            life.hello = hello
            life.hellos += 1
        if report := packet.get("report"):
            self._report(report, life)
        return life

    def _report(self, report, life):
        life.packets += 1
        life.done += report["finished"]
        assert report["tables"].keys() <= set(life.hello["tables"])
        for name, rows in report["tables"].items():
            for row in rows:
                key = tuple(row["key"]) if name == "steps" else row["key"]
                life.arriving[name][key] = row["counts"]
                life.since[name, key] = row["since"]
        if end := report["end"]:
            # else more finished requests of the same cut
            life.reports += end["total"] != life.total
            self.fallen += _falls(life.total, end["total"])
            life.end, life.total, life.lost = end, end["total"], end["lost"]
            for name, rows in life.arriving.items():
                for key, row in rows.items():
                    self.fallen += _falls(life.tables[name].get(key, {}), row)
                    life.tables[name][key] = row
            life.arriving.clear()
            summed = set(life.hello["tables"]) - NOT_SUMMED
            self.torn += any(life.sums(name)[1:] != life.totals() for name in summed)

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
