"""What may watch the exchanges, and the guard that keeps it from harming them."""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Protocol

from sidecar.requests.proxy.stats import Counters

Headers = Collection[tuple[bytes, bytes]]


class ExchangeOutcome(StrEnum):
    """How an exchange ended, as far as the relay is concerned; a 500 that was relayed whole is completed."""

    COMPLETED = "completed"  # the whole response was handed to the client's socket
    CLIENT_GONE = "client_gone"
    UPSTREAM_FAILED = "upstream_failed"  # no response, or one that broke off
    REFUSED = "refused"  # the relay itself ended it: a body that breaks a rule or a limit, or a drain


class Observer(Protocol):
    """Watches one exchange. Calls come after the bytes were handed on, in order, on the event loop.

    They must be quick. An exception is caught and counted, after which only ``finished`` is still called.
    """

    def request_head(self, method: bytes, target: bytes, headers: Headers) -> None:
        """The request as received; called first and once."""

    def request_body(self, data: bytes) -> None:
        """A piece of the request's payload, free of chunk framing."""

    def request_end(self) -> None:
        """The request is whole; not called for one that breaks off, and a response may begin before it."""

    def response_head(self, status: int, headers: Headers) -> None:
        """The upstream's final response head, or its 101; not called for a reply the relay makes up itself."""

    def response_body(self, data: bytes) -> None:
        """A piece of the response's payload, free of chunk framing; never called for a tunnel."""

    def finished(self, outcome: ExchangeOutcome) -> None:
        """The end; called exactly once."""


ObserverFactory = Callable[[], Observer | None]


class Watch:
    """One exchange's observer behind a guard: what it raises is counted and goes no further."""

    __slots__ = ("_counters", "_failed", "_observer")

    def __init__(self, observer: Observer, counters: Counters) -> None:
        self._observer = observer
        self._counters = counters
        self._failed = False

    @classmethod
    def make(cls, factory: ObserverFactory, counters: Counters) -> "Watch | None":
        """A guarded observer, or None where the factory wants none or raises."""
        try:
            observer = factory()
        except Exception:  # noqa: BLE001 -- observers fail open, whatever they raise
            counters.observer_failures += 1
            return None
        return None if observer is None else cls(observer, counters)

    def request_head(self, method: bytes, target: bytes, headers: Headers) -> None:
        """Guarded ``Observer.request_head``."""
        try:
            self._observer.request_head(method, target, headers)
        except Exception:  # noqa: BLE001 -- see above
            self._fail()

    def request_body(self, data: bytes) -> None:
        """Guarded ``Observer.request_body``."""
        if not self._failed:
            try:
                self._observer.request_body(data)
            except Exception:  # noqa: BLE001 -- see above
                self._fail()

    def request_end(self) -> None:
        """Guarded ``Observer.request_end``."""
        if not self._failed:
            try:
                self._observer.request_end()
            except Exception:  # noqa: BLE001 -- see above
                self._fail()

    def response_head(self, status: int, headers: Headers) -> None:
        """Guarded ``Observer.response_head``."""
        if not self._failed:
            try:
                self._observer.response_head(status, headers)
            except Exception:  # noqa: BLE001 -- see above
                self._fail()

    def response_body(self, data: bytes) -> None:
        """Guarded ``Observer.response_body``."""
        if not self._failed:
            try:
                self._observer.response_body(data)
            except Exception:  # noqa: BLE001 -- see above
                self._fail()

    def finished(self, outcome: ExchangeOutcome) -> None:
        """Guarded ``Observer.finished``; called even after a failure, so that nothing stays "in flight"."""
        try:
            self._observer.finished(outcome)
        except Exception:  # noqa: BLE001 -- see above
            self._fail()

    def _fail(self) -> None:
        self._failed = True
        self._counters.observer_failures += 1
