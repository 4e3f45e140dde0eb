"""Asks for usage on the client's behalf and removes it from the reply.

Without usage a stream reports neither its tokens nor its acceptance. So for a chat or text completion that streams
without ``stream_options.include_usage``, vLLM gets a body that asks for usage, and the client gets the reply that it
would have received otherwise. The proxy and the middleware both use it:

1. ``UsageAsker.ask`` returns the body to send to vLLM, or None if the request must not be changed.
2. If ``AskedStream.refused`` returns true for the reply's head, the original body is sent, once.
3. Each piece of the reply goes through ``AskedStream.forward``; ``rest`` returns what is held back if the reply breaks
   off.

Asking changes two things in a stream of vLLM 0.29 to 0.33: an event with usage and without choices comes before
``[DONE]``, and ``system_fingerprint`` is in that event instead of being the last field of each event with a
``finish_reason``. In 0.33 ``kv_transfer_params`` follow it; if they are not null, as after a remote prefill, it is put
behind them. With ``--enable-force-include-usage`` asking changes nothing: each event has usage anyway, and the stream
passes unchanged.
"""

from collections.abc import Collection
from enum import Enum
from typing import Final

import msgspec

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint
from sidecar.requests.observe.payload import UNREADABLE, read_request
from sidecar.requests.observe.stream import END_OF_EVENT
from sidecar.requests.observe.usage_event import (
    EventKind,
    are_whole_chunks,
    closing_of,
    kind_of,
    may_be_usage,
    unfinished_closing,
)
from sidecar.requests.record import AskedUsage

KNOWN_VERSIONS: Final = ("0.29.", "0.30.", "0.31.", "0.32.", "0.33.")
"""vLLM versions whose streams are known to differ in nothing else: 0.32 was seen, the others' source was read."""

_LONGEST_EVENT: Final = 1_048_576  # bytes; a longer event is neither removed nor changed
_OK: Final = 200
_REFUSED: Final = 400
_MOST_MODELS: Final = 64  # excluded models after which vLLM is no longer asked

_Fields = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_OFF: Final = (b"null", b"false")


class AskUsage(Enum):
    """The setting ``requests.ask_usage``."""

    NEVER = "false"
    KNOWN = "true"  # only versions that are known to differ in nothing else
    ALWAYS = "any"


class UsageAsker:
    """Decides for which streams of one vLLM to ask for usage; ``version`` is vLLM's, None while unknown."""

    def __init__(self, mode: AskUsage, *, max_bytes: int, version: str | None = None) -> None:
        self.version = version
        self._mode = mode
        self._max_bytes = max_bytes
        self._left: set[str] = set()  # models that are not asked for again
        self.fingerprint: bytes | None = None  # as JSON, as vLLM stamps it; None if not known yet, empty if it does not

    @property
    def needs_version(self) -> bool:
        """Whether the decision depends on vLLM's version."""
        return self._mode is AskUsage.KNOWN

    def might_ask(self, endpoint: Endpoint | None, headers: Collection[tuple[bytes, bytes]]) -> bool:
        """Whether to call ``ask`` with the complete body, which must be buffered until then."""
        is_known = self.version is not None and self.version.startswith(KNOWN_VERSIONS)
        return (
            (self._mode is AskUsage.ALWAYS or (self.needs_version and is_known))
            and endpoint in (CHAT, COMPLETIONS)
            and not any(name.lower() == b"content-encoding" for name, _ in headers)
        )

    def ask(self, endpoint: Endpoint, body: bytes) -> "AskedStream | None":
        """The stream that ``body`` becomes by asking for usage; None if it must be sent unchanged."""
        if len(body) > self._max_bytes:
            return None
        request = read_request(endpoint, body)
        if request is None or not request.stream:
            return None
        model = request.model or ""
        if model in self._left or len(self._left) >= _MOST_MODELS:
            return None
        if request.choices > 1 and self.fingerprint is None:
            return None  # its choices end one by one; the first cannot wait for the fingerprint in the last event
        asking = _asking(body)
        return None if asking is None else AskedStream(self, model, asking, choices=request.choices)

    def leave(self, model: str) -> None:
        """Do not ask for this model again."""
        self._left.add(model)

    def forget(self) -> None:
        """Reset: vLLM was replaced."""
        self.version = self.fingerprint = None
        self._left.clear()


def _asking(body: bytes) -> bytes | None:
    """``body`` with ``include_usage``; None if the client asked for usage, or if vLLM would reject its options.

    All values stay as they were written, byte for byte.
    """
    try:
        fields = _FIELDS.decode(body)
        given = bytes(fields.get("stream_options", b"null"))
        options = {} if given == b"null" else _FIELDS.decode(given)
    except UNREADABLE:
        return None
    if _is_on(options, "include_usage") or _is_on(options, "continuous_usage_stats"):
        return None
    if _is_on(fields, "use_beam_search"):  # vLLM sends the whole reply as one event
        return None
    options["include_usage"] = msgspec.Raw(b"true")
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)


def _is_on(fields: _Fields, name: str) -> bool:
    return bytes(fields.get(name, b"null")) not in _OFF


class AskedStream:
    """A stream with usage requested: ``body`` is what to send to vLLM; the sender may empty it afterwards.

    It holds back only bytes of the reply that may begin the usage event, and the end of the event with the
    ``finish_reason``, which vLLM sends together with the usage. ``outcome`` says what was done.
    """

    def __init__(self, asker: UsageAsker, model: str, body: bytes, *, choices: int) -> None:
        self.body = body
        self.outcome = AskedUsage.MISSING
        self._asker = asker
        self._model = model
        self._choices = choices
        self._event = bytearray()  # the part of the current event that has arrived
        self._sent = 0  # bytes of it that were forwarded
        self._closing = b""  # the end of the event with the finish reason, waiting for the usage
        self._refused = False  # the changed request was refused
        self._passing = False  # nothing is left to change

    def refused(self, status: int, headers: Collection[tuple[bytes, bytes]]) -> bool:
        """Whether to discard the reply and send the original request, whose reply then passes through here.

        If vLLM accepts the original, or sends a stream whose bytes cannot be changed, it is not asked for this model
        again. In the second case the client gets usage that it did not ask for.
        """
        if self._refused:
            if status < _REFUSED:
                self.outcome = AskedUsage.REFUSED
                self._asker.leave(self._model)
            return False
        self._refused = status == _REFUSED
        found = {name.lower(): value.strip().lower() for name, value in headers}
        self._passing = status != _OK or not found.get(b"content-type", b"").startswith(b"text/event-stream")
        encoding = found.get(b"content-encoding", b"identity")
        if not self._passing and (encoding != b"identity" or b"content-length" in found):
            self._passing = True
            self._asker.leave(self._model)
        return self._refused

    def forward(self, piece: bytes, *, last: bool = False) -> bytes:
        """The bytes for the client now that ``piece`` has arrived. Never raises: after a fault, all bytes pass."""
        if self._passing or (are_whole_chunks(piece) and not (last or self._event or self._closing)):
            return piece
        held = self._held()
        try:
            forwarded = self._forward(piece)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the reply
            self._passing = True
            return held + piece
        return forwarded + self.rest() if last else forwarded

    def rest(self) -> bytes:
        """The bytes still held back, unchanged: the stream has ended. Everything after them passes."""
        rest = b"" if self._passing else self._held()
        self._passing = True
        self._event.clear()
        return rest

    def _held(self) -> bytes:
        return self._closing + self._event[self._sent :]

    def _forward(self, piece: bytes) -> bytes:
        event, out = self._event, b""
        new = max(len(event) - 1, 0)  # where the end of the event may begin
        event += piece
        while (end := event.find(END_OF_EVENT, new) + len(END_OF_EVENT)) >= len(END_OF_EVENT):
            whole, sent = bytes(event[:end]), self._sent
            del event[:end]
            self._sent = new = 0
            out += self._complete(whole, sent)
            if self._passing:
                return out + event
        if len(event) > _LONGEST_EVENT:
            return out + self.rest()
        if self._sent or not may_be_usage(event):
            going = len(event) - unfinished_closing(event)
            out += self._closing + event[self._sent : going]
            self._closing = b""
            self._sent = going
        return out

    def _complete(self, event: bytes, sent: int) -> bytes:
        """The bytes to forward now that ``event`` is whole; ``sent`` of its bytes were forwarded already."""
        kind, fingerprint = kind_of(event)
        if kind is EventKind.USAGE and not sent:
            self._asker.fingerprint = fingerprint
            self.outcome = AskedUsage.REMOVED
            self._passing = True
            closing, self._closing = self._closing, b""
            return _stamp(fingerprint) + closing if closing else b""
        out, self._closing = self._closing, b""
        if kind is EventKind.FORCED:
            self._passing = True
            self._asker.leave(self._model)  # nothing is gained by asking
        elif kind is EventKind.LAST and self._choices > 1:
            closing = closing_of(event)
            return out + event[sent : -len(closing)] + _stamp(self._asker.fingerprint or b"") + closing
        elif kind is EventKind.LAST:
            self._closing = closing_of(event)
            return out + event[sent : -len(self._closing)]
        return out + event[sent:]


def _stamp(fingerprint: bytes) -> bytes:
    """The fingerprint as vLLM writes it at the end of an event."""
    return b',"system_fingerprint":' + fingerprint if fingerprint else b""
