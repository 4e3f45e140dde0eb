"""One exchange in which usage is asked for on the client's behalf; see ``observe/usage.py``."""

from sidecar.requests.observe.usage import AskedStream
from sidecar.requests.proxy.framing import Body
from sidecar.requests.proxy.head import with_length
from sidecar.requests.proxy.observer import GuardedObserver
from sidecar.requests.proxy.request import RequestHead
from sidecar.requests.proxy.response import ResponseHead


class Asking:
    """Holds the request back until it is complete, and removes the usage from the reply."""

    __slots__ = ("_filters", "_observer", "_original", "_payload", "_request", "_stream", "waiting")

    def __init__(self, request: RequestHead, observer: GuardedObserver) -> None:
        self.waiting = True  # the request is not complete
        self._request = request
        self._observer = observer
        self._payload = bytearray()
        self._original = b""  # the client's own request, until vLLM has accepted the changed one
        self._stream: AskedStream | None = None
        self._filters = False  # the reply is a stream with usage to take out

    def outgoing(self, payload: bytes, body: Body) -> bytes:
        """The request with its head, once it is complete or too large; empty while it waits for more."""
        self._payload += payload
        if not body.done and len(self._payload) <= self._observer.ask_bytes:
            return b""
        self.waiting = False
        whole, self._payload = bytes(self._payload), bytearray()
        original = self._request.forwarded + body.encode(whole)
        self._stream = self._observer.ask(whole) if body.done else None
        if self._stream is None:
            return original
        self._original = original
        changed, self._stream.body = self._stream.body, b""
        return with_length(self._request.forwarded, len(changed)) + body.encode(changed)

    def reply_head(self, head: ResponseHead) -> bytes:
        """The client's own request if vLLM refused the changed one: to be sent now, in place of the reply."""
        if self._stream is None:
            return b""
        original, self._original = self._original, b""
        if original and head.status == 400:
            return original
        if original:
            self._filters = self._stream.filters(head.status, head.headers)
        elif head.status < 400:
            self._stream.refused()
        return b""

    def forwarded(self, payload: bytes, *, done: bool) -> bytes:
        """The part of the reply that the client gets now; ``done``: it is complete."""
        if self._stream is None or not self._filters:
            return payload
        payload = self._stream.forward(payload)
        return payload + self._stream.rest() if done else payload

    def rest(self) -> bytes:
        """What is still held back of a reply that has broken off."""
        return self._stream.rest() if self._stream is not None and self._filters else b""
