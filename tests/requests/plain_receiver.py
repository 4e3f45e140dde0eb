"""A receiver for the plug-in that shares no code with the sidecar's, to check its counts against vLLM's own."""

import json
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

TABLES = ("temperature", "prompt_tokens", "output", "adapter", "steps")


@dataclass
class Engine:
    """One life of one scheduler, as far as the plug-in reported it."""

    hello: dict
    hellos: int = 0
    total: dict = field(default_factory=dict)
    lost: int = 0
    reports: int = 0
    packets: int = 0
    done: list = field(default_factory=list)
    tables: dict = field(default_factory=lambda: {name: {} for name in TABLES})
    arriving: dict = field(default_factory=lambda: {name: {} for name in TABLES})

    def sums(self, table):
        """Requests, drafts, draft tokens and accepted tokens over the table's rows."""
        rows = self.tables[table].values()
        requests = sum(row[outcome] for row in rows for outcome in OUTCOMES)
        return (requests, *(sum(row[name] for row in rows) for name in COUNTS))

    def totals(self):
        """Drafts, draft tokens and accepted tokens."""
        return tuple(self.total.get(name, 0) for name in COUNTS)

    def finished(self):
        """The same sums over the finished requests."""
        return (len(self.done), *(sum(one[name] for one in self.done) for name in COUNTS))


OUTCOMES = ("stopped", "length", "aborted", "error")
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


def _falls(before, after):
    numbers = {name: value if isinstance(value, list) else [value] for name, value in after.items()}
    earlier = {name: value if isinstance(value, list) else [value] for name, value in before.items()}
    return any(new < old for name in earlier for old, new in zip(earlier[name], numbers[name], strict=True))


class PlainReceiver:
    """Listens at a path, in threads; keeps the latest of each row, by the engine's ``start``.

    Packets are processed as a whole: a condition of ``until`` never sees part of one.
    """

    def __init__(self, path, mode=0o666):
        self._taking = threading.RLock()
        self.path, self.engines = path, {}
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

    def _start(self, work, given):
        thread = threading.Thread(target=work, args=(given,), daemon=True)
        self._reading.append((given, thread))
        thread.start()

    def _accept(self, listener):
        with listener, suppress(OSError):
            while True:
                self._start(self._read, listener.accept()[0])

    def _read(self, connection):
        engine = None
        with connection, suppress(OSError):
            while packet := connection.recv(65_537):
                assert len(packet) <= 65_536
                with self._taking:
                    engine = self._take(json.loads(packet), engine)

    def _take(self, packet, engine):
        assert packet["v"] == 2
        if hello := packet.get("hello"):
            engine = self.engines.setdefault(hello["start"], Engine(hello))
            engine.hello = hello
            engine.hellos += 1
        if report := packet.get("report"):
            self._report(report, engine)
        return engine

    def _report(self, report, engine):
        engine.packets += 1
        engine.done += report["finished"]
        for name in TABLES:
            engine.arriving[name].update({row["key"]: row["counts"] for row in report.get(name, [])})
        if end := report["end"]:
            engine.reports += end["total"] != engine.total  # else more finished requests of the same cut
            self.fallen += _falls(engine.total, end["total"])
            engine.total, engine.lost = end["total"], end["lost"]
            for name in TABLES:
                for key, row in engine.arriving[name].items():
                    self.fallen += _falls(engine.tables[name].get(key, {}), row)
                    engine.tables[name][key] = row
                engine.arriving[name].clear()
            self.torn += any(engine.sums(name)[1:] != engine.totals() for name in TABLES[:4])

    def die(self):
        """Ends like a killed sidecar, and leaves no thread that could read from a descriptor reused by another."""
        for one, thread in self._reading:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            thread.join()
        self._reading.clear()

    def live_again(self):
        """Listens again like a restarted sidecar, which would remember nothing; this one keeps what it received."""
        self._listen(0o666)

    @property
    def only(self):
        """The only engine."""
        (engine,) = self.engines.values()
        return engine

    @property
    def total(self):
        with self._taking:
            return tuple(map(sum, zip(*(engine.totals() for engine in self.engines.values()), strict=True)))

    def by_temperature(self):
        """Requests that ended, drafts, draft tokens and accepted tokens by hundredths, over all engines."""
        sums = {}
        for engine in self.engines.values():
            for key, row in engine.tables["temperature"].items():
                summed = sums.setdefault(key, Counter())
                summed.update({name: row[name] for name in COUNTS})
                summed["requests"] += sum(row[outcome] for outcome in OUTCOMES)
        return sums

    def until(self, condition, seconds=120.0):
        """Waits until ``condition`` holds; fails after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            with self._taking:
                if condition():
                    return
                assert time.monotonic() < deadline, {start: engine.total for start, engine in self.engines.items()}
            time.sleep(0.02)
