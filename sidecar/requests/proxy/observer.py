"""The ``proxy`` source: what the relay passes on, observed."""

from collections.abc import Callable
from itertools import count

from sidecar.requests.observe.endpoint import endpoint_of
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.proxy.observe import ExchangeOutcome, Headers, Observer
from sidecar.requests.record import RequestSink


def observer_factory(sink: RequestSink, *, max_bytes: int, offsets: bool = False) -> Callable[[], Observer]:
    """Observers for a relay, which deliver to ``sink``.

    Bodies and stream events over ``max_bytes`` are passed on and not looked into; ``offsets`` keeps the time of each
    stream event, for recordings.
    """
    numbers = count(1)

    def observer() -> Observer:
        return _ProxyObserver(str(next(numbers)), sink, max_bytes, offsets=offsets)

    return observer


class _ProxyObserver:
    """One exchange of the relay; only generation endpoints are observed."""

    __slots__ = ("_exchange", "_max_bytes", "_number", "_offsets", "_replied", "_requested", "_sink")

    def __init__(self, number: str, sink: RequestSink, max_bytes: int, *, offsets: bool) -> None:
        self._number = number
        self._sink = sink
        self._max_bytes = max_bytes
        self._offsets = offsets
        self._exchange: ExchangeObserver | None = None
        self._requested = False
        self._replied = False

    def request_head(self, method: bytes, target: bytes, headers: Headers) -> None:
        path = target.partition(b"?")[0].decode("latin-1")
        endpoint = endpoint_of(method.decode("latin-1"), path)
        if endpoint is not None:
            self._exchange = ExchangeObserver(
                self._number, endpoint, headers, max_bytes=self._max_bytes, offsets=self._offsets
            )
            self._sink.started(self._exchange.start)

    def request_body(self, data: bytes) -> None:
        if self._exchange is not None and not self._requested:
            self._exchange.request_piece(data)

    def request_end(self) -> None:
        self._end_request()

    def response_head(self, status: int, headers: Headers) -> None:
        if self._exchange is not None:
            self._end_request()
            self._replied = True
            self._exchange.reply_head(status, headers)

    def response_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.reply_piece(data)

    def finished(self, outcome: ExchangeOutcome) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._end_request()
        if outcome is ExchangeOutcome.COMPLETED:
            exchange.reply_end()
        elif outcome is ExchangeOutcome.CLIENT_GONE:
            exchange.client_gone()
        # A reply that broke off is aborted: vLLM has worked on it. One that never began is an error.
        lost = outcome in {ExchangeOutcome.UPSTREAM_FAILED, ExchangeOutcome.REFUSED}
        self._sink.finished(exchange.finish(failed=lost and not self._replied))
        for fault in exchange.faults:
            self._sink.dropped(fault, 1)

    def _end_request(self) -> None:
        """The body is read and let go: when it is whole, for a reply may be long in coming, or no longer matters."""
        if not self._requested and self._exchange is not None:
            self._requested = True
            self._exchange.request_end()
