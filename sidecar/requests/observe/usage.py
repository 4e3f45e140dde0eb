"""Asks for usage on the client's behalf and removes it from the reply.

Without usage a stream reports neither its tokens nor its acceptance. So for a chat or text completion that streams
without ``stream_options.include_usage``, vLLM gets a body that asks for usage, and the client gets the reply that it
would have got. The proxy and the middleware both use it:

1. ``UsageAsker.ask`` gives the body to send to vLLM, or None if the request is to be left alone.
2. If vLLM answers 400, the original body is sent, once. If that one is accepted, call ``AskedStream.refused``: vLLM is
   not asked again for that model.
3. Otherwise each piece of a streamed reply goes through ``AskedStream.forward``, and its end through ``rest``.

What asking changes in a stream of vLLM 0.32 (seen, and in its source): an event with usage and without choices comes
before ``[DONE]``; and ``system_fingerprint`` is in that event, and otherwise the last field of each event with a
``finish_reason``. With ``--enable-force-include-usage`` asking changes nothing: each event has usage anyway, and the
stream is left as it is.
"""

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

import msgspec

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint
from sidecar.requests.observe.payload import UNREADABLE, read_request
from sidecar.requests.observe.stream import END_OF_EVENT, FIRST_CHOICE
from sidecar.requests.record import AskedUsage

KNOWN_VERSIONS: Final = ("0.32.",)
"""vLLM versions whose streams are known to differ in nothing else."""

_CLOSING: Final = b"}\n\n"  # of an event's object
_DATA: Final = b"data: {"
_CHOICES: Final = b'"choices":['
_FINISHED: Final = b'"finish_reason":"'
_LONGEST_EVENT: Final = 1_048_576  # bytes; a longer event is neither taken out nor changed
_LONGEST_HEAD: Final = 4096  # bytes that may come before an event's choices
_MOST_MODELS: Final = 64  # to be left before vLLM is no longer asked

_Fields = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_OFF: Final = (b"null", b"false")


class AskUsage(Enum):
    """The setting ``requests.ask_usage``."""

    NEVER = "false"
    KNOWN = "true"  # of versions that are known to differ in nothing else
    ALWAYS = "any"


class UsageAsker:
    """Decides which streams are asked for, for one vLLM; ``version`` is vLLM's, None while it is not known."""

    def __init__(self, mode: AskUsage, *, max_bytes: int, version: str | None = None) -> None:
        self.version = version
        self._mode = mode
        self._max_bytes = max_bytes
        self._left: set[str] = set()  # models that are not asked for again
        self._fingerprint: bytes | None = None  # that vLLM stamps; None while it is not known, empty if it stamps none

    @property
    def needs_version(self) -> bool:
        """Whether it depends on vLLM's version which requests are asked for."""
        return self._mode is AskUsage.KNOWN

    @property
    def enabled(self) -> bool:
        """Whether any request may be asked for at present."""
        known = self.version is not None and self.version.startswith(KNOWN_VERSIONS)
        return self._mode is AskUsage.ALWAYS or (self.needs_version and known)

    def might_ask(self, endpoint: Endpoint | None, headers: Collection[tuple[bytes, bytes]]) -> bool:
        """Whether to call ``ask`` with the complete body, which must be buffered until then."""
        return (
            self.enabled
            and endpoint in (CHAT, COMPLETIONS)
            and not any(name.lower() == b"content-encoding" for name, _ in headers)
        )

    def ask(self, endpoint: Endpoint, body: bytes) -> "AskedStream | None":
        """The stream that ``body`` becomes by asking for usage; None if it must be sent unchanged."""
        if len(body) > self._max_bytes:
            return None
        request = read_request(endpoint, body)
        if request is None or not request.stream or self._leaves(request.model):
            return None
        if request.choices > 1 and self._fingerprint is None:
            return None  # its choices end one by one, and the first cannot wait for the fingerprint of the last event
        asking = _asking(body)
        return None if asking is None else AskedStream(self, request.model or "", asking, choices=request.choices)

    def leave(self, model: str) -> None:
        """Do not ask for this model again."""
        self._left.add(model)

    def stamped(self, fingerprint: bytes) -> None:
        """A usage event had this fingerprint, as JSON; empty: it had none."""
        self._fingerprint = fingerprint

    def forget(self) -> None:
        """Reset: vLLM was replaced."""
        self.version = self._fingerprint = None
        self._left.clear()

    @property
    def fingerprint(self) -> bytes:
        """As JSON; empty if vLLM stamps none."""
        return self._fingerprint or b""

    def _leaves(self, model: str | None) -> bool:
        return (model or "") in self._left or len(self._left) >= _MOST_MODELS


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
    """A stream that was asked for usage: ``body`` is what to send to vLLM; the sender may empty it afterwards.

    Of the reply, only bytes wait that may still be the beginning of the usage event, and the end of the event with the
    ``finish_reason``, which vLLM sends together with the usage. ``outcome`` says what was done.
    """

    def __init__(self, asker: UsageAsker, model: str, body: bytes, *, choices: int) -> None:
        self.body = body
        self.outcome = AskedUsage.MISSING
        self._asker = asker
        self._model = model
        self._choices = choices
        self._event = bytearray()  # the current one, as far as it has come
        self._sent = 0  # bytes of it that were forwarded
        self._closing = b""  # the end of the event with the finish reason, which waits for the usage
        self._passing = False  # nothing is left to do

    def refused(self) -> None:
        """Notes that vLLM answered 400 and then accepted the original body."""
        self.outcome = AskedUsage.REFUSED
        self._asker.leave(self._model)

    def filters(self, status: int, headers: Collection[tuple[bytes, bytes]]) -> bool:
        """Whether a reply with this head goes through ``forward``: a stream of events whose bytes can be changed.

        If they cannot, vLLM is not asked for this model again: the client gets the usage that it did not ask for.
        """
        found = {name.lower(): value.strip().lower() for name, value in headers}
        if status != 200 or not found.get(b"content-type", b"").startswith(b"text/event-stream"):
            return False
        if b"content-length" in found or found.get(b"content-encoding", b"identity") != b"identity":
            self._asker.leave(self._model)
            return False
        return True

    def forward(self, piece: bytes) -> bytes:
        """What the client gets now that ``piece`` has come. Never raises: if it fails, all bytes pass from then on."""
        if self._passing or (_is_whole_chunk(piece) and not (self._event or self._closing)):
            return piece
        held = self._held()
        try:
            return self._forward(piece)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the reply
            self._passing = True
            return held + piece

    def rest(self) -> bytes:
        """What is still held back, unchanged: the stream has ended. Everything after it passes."""
        rest = b"" if self._passing else self._held()
        self._passing = True
        self._event.clear()
        return rest

    def _held(self) -> bytes:
        return self._closing + self._event[self._sent :]

    def _forward(self, piece: bytes) -> bytes:
        event, out = self._event, b""
        new = max(len(event) - 1, 0)  # where an end of the event may begin
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
        if self._sent or not _may_be_usage(event):
            going = len(event) - (2 if event.endswith(b"}\n") else event.endswith(b"}"))  # that may be the closing
            out += self._closing + event[self._sent : going]
            self._closing = b""
            self._sent = going
        return out

    def _complete(self, event: bytes, sent: int) -> bytes:
        """What to forward now that ``event`` is whole, of which ``sent`` bytes were forwarded."""
        kind, fingerprint = _kind_of(event)
        if kind is _Kind.USAGE and not sent:
            self._asker.stamped(fingerprint)
            self.outcome = AskedUsage.REMOVED
            self._passing = True
            closing, self._closing = self._closing, b""
            return _stamp(fingerprint) + closing if closing else b""
        out, self._closing = self._closing, b""
        if kind is _Kind.FORCED:
            self._passing = True
            self._asker.leave(self._model)  # nothing is gained by asking
        elif kind is _Kind.LAST and self._choices > 1:
            return out + event[sent : -len(_CLOSING)] + _stamp(self._asker.fingerprint) + _CLOSING
        elif kind is _Kind.LAST:
            self._closing = _CLOSING
            return out + event[sent : -len(_CLOSING)]
        return out + event[sent:]


class _Kind(Enum):
    LAST = auto()  # the last event of a choice, without a fingerprint
    USAGE = auto()  # usage and no choices
    FORCED = auto()  # choices with usage that was not asked for: the server's own flag
    OTHER = auto()


class _EventChoice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_EventChoice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()


_EVENT: Final = msgspec.json.Decoder(_Event)


def _kind_of(event: bytes) -> tuple[_Kind, bytes]:
    """What a whole event is, and the fingerprint of the one with usage.

    The model's text cannot look like a field: within a string, each quotation mark follows a backslash.
    """
    if (
        not event.startswith(_DATA)
        or not event.endswith(_CLOSING)
        or (FIRST_CHOICE in event and _FINISHED not in event)
    ):
        return _Kind.OTHER, b""
    try:
        fields = _EVENT.decode(event[len(_DATA) - 1 :])
    except UNREADABLE:
        return _Kind.OTHER, b""
    has_usage = bytes(fields.usage) not in (b"", b"null")
    fingerprint = bytes(fields.system_fingerprint).replace(b"null", b"")
    if not fields.choices:
        return (_Kind.USAGE, fingerprint) if has_usage and fields.choices == [] else (_Kind.OTHER, b"")
    if has_usage:
        return _Kind.FORCED, b""
    is_last = not fingerprint and any(choice.finish_reason for choice in fields.choices)
    return (_Kind.LAST if is_last else _Kind.OTHER), b""


def _is_whole_chunk(piece: bytes) -> bool:
    """Whether a piece is one event with tokens and not the last, as nearly all are that vLLM hands its server."""
    return (
        _FINISHED not in piece
        and FIRST_CHOICE in piece
        and piece.startswith(_DATA)
        and piece.find(END_OF_EVENT) == len(piece) - len(END_OF_EVENT)
    )


def _stamp(fingerprint: bytes) -> bytes:
    """The fingerprint as vLLM writes it at the end of an event."""
    return b',"system_fingerprint":' + fingerprint if fingerprint else b""


def _may_be_usage(beginning: bytearray) -> bool:
    """Whether an event that begins so may be the one with usage."""
    if not beginning.startswith(_DATA[: len(beginning)]):
        return False
    at = beginning.find(_CHOICES, 0, _LONGEST_HEAD)
    if at < 0:
        return len(beginning) <= _LONGEST_HEAD
    following = at + len(_CHOICES)
    return len(beginning) == following or beginning.startswith(b"]", following)
