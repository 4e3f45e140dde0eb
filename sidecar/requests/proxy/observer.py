"""Observes exchanges without harm to them; the ``proxy`` source turns them into request records."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeVarTuple
from urllib.parse import unquote

from sidecar.requests.observe.endpoint import endpoint_of
from sidecar.requests.observe.exchange_observer import Body, ExchangeObserver, Fault
from sidecar.requests.observe.usage import AskedStream, AskUsage, UsageAsker
from sidecar.requests.proxy.outcomes import ExchangeOutcome, ProxyStats
from sidecar.requests.source import RequestSink

OUT_OF_MEMORY: Final = "out_of_memory"
"""The reason for a dropped exchange whose bodies were not kept because those of others used all the memory."""

_OBSERVED_BYTES: Final = 32 * 1_048_576  # of the bodies of all exchanges in progress
Headers = Sequence[tuple[bytes, bytes]]
_Values = TypeVarTuple("_Values")


ObserverFactory = Callable[[bytes, bytes, Headers], "_RecordingObserver | None"]
"""Makes the observer of one exchange from the request's method, target and headers; None: it is not observed."""


class GuardedObserver:
    """The observer of one exchange, if there is one, called in order on the event loop after bytes were forwarded.

    What it raises is counted and goes no further: after that only ``finished`` is still called.
    """

    __slots__ = ("_counters", "_finished", "_observer")

    def __init__(self, counters: ProxyStats) -> None:
        self._counters = counters
        self._observer: _RecordingObserver | None = None
        self._finished: Callable[[ExchangeOutcome], None] | None = None

    def begin(self, factory: ObserverFactory, method: bytes, target: bytes, headers: Headers) -> None:
        """Ask ``factory`` for the observer."""
        try:
            observer = factory(method, target, headers)
        except Exception:  # noqa: BLE001 - observers fail open, whatever they raise
            self._counters.observer_failures += 1
            return
        if observer is not None:
            self._observer, self._finished = observer, observer.finished

    @property
    def ask_bytes(self) -> int:
        """Bytes of the request held back until it is complete, for ``ask``; 0: it is forwarded immediately."""
        return 0 if self._observer is None else self._observer.ask_bytes

    def ask(self, body: bytes) -> AskedStream | None:
        """The complete request, changed so that it asks for usage; None: send it unchanged."""
        if self._observer is None or not self._observer.ask_bytes:
            return None
        try:
            return self._observer.ask(body)
        except Exception:  # noqa: BLE001 - see above
            self._counters.observer_failures += 1
            return None

    def request_piece(self, piece: bytes) -> None:
        """Payload of the request, without chunk framing."""
        if piece and self._observer is not None:
            self._call(self._observer.request_piece, piece)

    def request_end(self) -> None:
        """The request is complete; a response may begin before it. Not called for an incomplete request."""
        if self._observer is not None:
            self._call(self._observer.request_end)

    def reply_head(self, status: int, headers: Headers) -> None:
        """The upstream's final response head, or its 101; not called for the proxy's own error responses."""
        if self._observer is not None:
            self._call(self._observer.reply_head, status, headers)

    def reply_piece(self, piece: bytes) -> None:
        """Payload of the response, without chunk framing; never called for a tunnel."""
        if piece and self._observer is not None:
            self._call(self._observer.reply_piece, piece)

    def finished(self, outcome: ExchangeOutcome) -> None:
        """The end: called exactly once, even after a failure, so that no request stays in flight."""
        if self._finished is not None:
            self._call(self._finished, outcome)
        self._observer = self._finished = None

    def _call(self, method: Callable[[*_Values], None], *values: *_Values) -> None:
        try:
            method(*values)
        except Exception:  # noqa: BLE001 - see above
            self._counters.observer_failures += 1
            self._observer = None


def observer_factory(
    sink: RequestSink, *, max_bytes: int, offsets: bool = False, asker: UsageAsker | None = None
) -> ObserverFactory:
    """Observers that deliver a record of each request to a generation endpoint to ``sink``.

    Bodies and stream events over ``max_bytes`` are forwarded but not parsed. ``offsets`` keeps the time of each stream
    event, for recordings.
    """
    numbers = count(1)
    memory = _Memory(_OBSERVED_BYTES)
    usage = asker or UsageAsker(AskUsage.NEVER, max_bytes=max_bytes)

    def observe(method: bytes, target: bytes, headers: Headers) -> _RecordingObserver | None:
        path = unquote(target.partition(b"?")[0].decode("latin-1"))
        endpoint = endpoint_of(method.decode("latin-1"), path)
        if endpoint is None:
            return None
        bodies: list[_SharedBody] = []  # the request's, then the reply's if it is no stream

        def body(most: int) -> Body:
            skip = not bodies and _announced(headers) > most
            bodies.append(_SharedBody(0 if skip else most, memory))
            return bodies[-1]

        number = str(next(numbers))
        exchange = ExchangeObserver(number, endpoint, headers, max_bytes=max_bytes, offsets=offsets, body=body)
        # A client that expects "100 Continue" sends its body only once the upstream has the head.
        expects = any(name.lower() == b"expect" for name, _ in headers)
        ask_bytes = max_bytes if usage.might_ask(endpoint, headers) and not expects else 0
        return _RecordingObserver(exchange, bodies, sink, memory=memory, asker=usage, ask_bytes=ask_bytes)

    return observe


def _announced(headers: Headers) -> int:
    """The Content-Length of a request that the proxy accepted; 0 if it has none."""
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)


class _Memory:
    """The memory that the bodies of all exchanges share."""

    def __init__(self, limit: int) -> None:
        self._free = limit  # bytes

    def take(self, size: int) -> bool:
        """Whether there was so much left, which then is the caller's."""
        if size > self._free:
            return False
        self._free -= size
        return True

    def give_back(self, size: int) -> None:
        """What was taken is free again."""
        self._free += size


class _SharedBody(Body):
    """A body that is discarded if no memory is left for it."""

    __slots__ = ("_held", "_memory", "out_of_memory")

    def __init__(self, max_bytes: int, memory: _Memory) -> None:
        super().__init__(max_bytes)
        self._memory = memory
        self._held = 0
        self.out_of_memory = False

    def feed(self, piece: bytes) -> None:
        """See ``Body``."""
        if self.too_large:
            return
        if self._memory.take(len(piece)):
            self._held += len(piece)
            super().feed(piece)
        else:
            self.too_large = self.out_of_memory = True
        if self.too_large:
            self.release()

    def release(self) -> None:
        """Its content is no longer needed; safe to repeat."""
        self._memory.give_back(self._held)
        self._held = 0
        self.content = bytearray()


class _RecordingObserver:
    """One exchange on its way to becoming a record; its methods are those of ``GuardedObserver``, and quick."""

    __slots__ = (
        "_asked_bytes", "_asker", "_bodies", "_exchange", "_memory", "_reply_begun", "_request_ended", "_sink",
        "_stream", "ask_bytes", "reply_piece",
    )  # fmt: skip

    def __init__(
        self,
        exchange: ExchangeObserver,
        bodies: "list[_SharedBody]",
        sink: RequestSink,
        *,
        memory: _Memory,
        asker: UsageAsker,
        ask_bytes: int,
    ) -> None:
        self.ask_bytes = ask_bytes
        self._asker = asker
        self._stream: AskedStream | None = None
        self._memory = memory
        self._asked_bytes = 0  # of the changed request and of the original, kept until vLLM has accepted one of them
        self._exchange = exchange
        self._bodies = bodies
        self._sink = sink
        self._request_ended = False
        self._reply_begun = False
        self.reply_piece = exchange.reply_piece  # called for every chunk
        sink.started(exchange.start)

    def ask(self, body: bytes) -> AskedStream | None:
        stream = self._asker.ask(self._exchange.endpoint, body)
        if stream is None:
            return None
        size = len(body) + len(stream.body)
        if not self._memory.take(size):
            self._sink.dropped(OUT_OF_MEMORY, 1)
            return None
        self._stream, self._asked_bytes = stream, size
        return stream

    def request_piece(self, piece: bytes) -> None:
        if not self._request_ended:
            self._exchange.request_piece(piece)
            if self._bodies[0].too_large:
                self.ask_bytes = 0  # it is not held back either

    def request_end(self) -> None:
        """The body is parsed and freed as soon as it is complete, since the reply may take long. Safe to repeat."""
        if not self._request_ended:
            self._request_ended = True
            self._exchange.request_end()
            self._bodies[0].release()

    def _accepted(self) -> None:
        self._memory.give_back(self._asked_bytes)
        self._asked_bytes = 0

    def reply_head(self, status: int, headers: Headers) -> None:
        self.request_end()
        self._accepted()
        self._reply_begun = True
        self._exchange.reply_head(status, headers)

    def finished(self, outcome: ExchangeOutcome) -> None:
        try:
            self._report(outcome)
        finally:
            for body in self._bodies:
                body.release()

    def _report(self, outcome: ExchangeOutcome) -> None:
        exchange = self._exchange
        self._accepted()
        self.request_end()
        if outcome is ExchangeOutcome.COMPLETED:
            exchange.reply_end()
        elif outcome is ExchangeOutcome.CLIENT_GONE:
            exchange.client_gone()
        # An incomplete reply is an abort: vLLM has worked on it. One that never began is an error.
        lost = outcome in {ExchangeOutcome.UPSTREAM_FAILED, ExchangeOutcome.REFUSED}
        asked_usage = None if self._stream is None else self._stream.outcome
        self._sink.finished(exchange.finish(failed=lost and not self._reply_begun, asked_usage=asked_usage))
        out_of_memory = any(body.out_of_memory for body in self._bodies)
        for fault in exchange.faults:
            too_large = fault in {Fault.REQUEST_TOO_LARGE, Fault.REPLY_TOO_LARGE}
            self._sink.dropped(OUT_OF_MEMORY if too_large and out_of_memory else fault, 1)
