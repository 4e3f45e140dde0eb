"""A receiver for the plug-in that shares no code with the sidecar's, to check its counts against vLLM's own."""

import json
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

TABLES = ("temperature", "prompt", "output", "adapter", "steps")


@dataclass
class Engine:
    """One life of one scheduler, as far as the plug-in reported it."""

    hello: dict
    hellos: int = 0
    total: tuple = (0, 0, 0)
    lost: int = 0
    ticks: int = 0
    done: list = field(default_factory=list)
    tables: dict = field(default_factory=lambda: {name: {} for name in TABLES})

    def sums(self, table):
        """Requests, drafts, draft tokens and accepted tokens over the table's rows."""
        rows = self.tables[table].values()
        requests = [sum(row[0]) if table == "temperature" else row[0] for row in rows]
        return (sum(requests), *(sum(row[place] for row in rows) for place in (1, 2, 3)))

    def finished(self):
        """The same sums over the finished requests."""
        return (len(self.done), *(sum(one[name] for one in self.done) for name in COUNTS))


COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


class PlainReceiver:
    """Listens at a path, in threads; keeps the latest of each row, by the engine's ``start``.

    Packets are processed as a whole: a condition of ``until`` never sees part of one.
    """

    def __init__(self, path, mode=0o666):
        self._taking = threading.RLock()
        self.path, self.engines = path, {}
        self._reading = []  # sockets and the threads that read and close them; the listener first
        self.fallen = 0  # rows of a table in which a number decreased
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
        assert packet["v"] == 1
        if hello := packet.get("hello"):
            engine = self.engines.setdefault(hello["start"], Engine(hello))
            engine.hello = hello
            engine.hellos += 1
        engine.done += packet.get("done", [])
        if tick := packet.get("tick"):
            engine.ticks += 1
            engine.total, engine.lost = tuple(tick["total"]), tick["lost"]
            for name in TABLES:
                for key, *row in tick.get(name, []):
                    before = engine.tables[name].get(key, row)
                    self.fallen += any(one < old for one, old in zip(row, before, strict=True))
                    engine.tables[name][key] = row
        return engine

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
            return tuple(map(sum, zip(*(engine.total for engine in self.engines.values()), strict=True)))

    def by_temperature(self):
        """Requests that ended, drafts, draft tokens and accepted tokens by hundredths, over all engines."""
        sums = {}
        for engine in self.engines.values():
            for key, (ended, *counts) in engine.tables["temperature"].items():
                row = sums.setdefault(key, Counter())
                row.update(dict(zip(("requests", *COUNTS), (sum(ended), *counts[:3]), strict=True)))
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
