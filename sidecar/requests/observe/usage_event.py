"""The events of a stream that matter if usage was requested; see ``observe/usage.py``."""

from enum import Enum, auto
from typing import Final

import msgspec

from sidecar.requests.observe.payload import UNREADABLE
from sidecar.requests.observe.stream import END_OF_EVENT, FIRST_CHOICE

_CLOSINGS: Final = (b',"kv_transfer_params":null}\n\n', b"}\n\n")  # ends of an event's object; the first in vLLM 0.33
_DATA: Final = b"data: {"
_CHOICES: Final = b'"choices":['
_FINISHED: Final = b'"finish_reason":"'
_LONGEST_HEAD: Final = 4096  # bytes that may come before an event's choices


class EventKind(Enum):
    """What an event means for the requested usage."""

    LAST = auto()  # the last event of a choice, without a fingerprint
    USAGE = auto()  # usage and no choices
    FORCED = auto()  # choices with usage, because of the server's own flag
    OTHER = auto()


class _EventChoice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_EventChoice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()


_EVENT: Final = msgspec.json.Decoder(_Event)


def kind_of(event: bytes) -> tuple[EventKind, bytes]:
    """The kind of a whole event, and the fingerprint of the one with usage.

    The model's text cannot look like a field: within a string, each quotation mark follows a backslash.
    """
    if (
        not event.startswith(_DATA)
        or not event.endswith(_CLOSINGS)
        or (FIRST_CHOICE in event and _FINISHED not in event)
    ):
        return EventKind.OTHER, b""
    try:
        fields = _EVENT.decode(event[len(_DATA) - 1 :])
    except UNREADABLE:
        return EventKind.OTHER, b""
    has_usage = bytes(fields.usage) not in (b"", b"null")
    fingerprint = bytes(fields.system_fingerprint).replace(b"null", b"")
    if not fields.choices:
        return (EventKind.USAGE, fingerprint) if has_usage and fields.choices == [] else (EventKind.OTHER, b"")
    if has_usage:
        return EventKind.FORCED, b""
    is_last = not fingerprint and any(choice.finish_reason for choice in fields.choices)
    return (EventKind.LAST if is_last else EventKind.OTHER), b""


def closing_of(event: bytes) -> bytes:
    """The end of a whole event, just before which vLLM writes the fingerprint."""
    return next(closing for closing in _CLOSINGS if event.endswith(closing))


def unfinished_closing(beginning: bytearray) -> int:
    """How many bytes at the end of an unfinished event may belong to its closing."""
    return max(size for closing in _CLOSINGS for size in range(len(closing)) if beginning.endswith(closing[:size]))


def are_whole_chunks(piece: bytes) -> bool:
    """Whether a piece consists of whole events with tokens, none the last of its choice, as nearly all pieces do."""
    return (
        piece.startswith(_DATA)
        and piece.endswith(END_OF_EVENT)
        and _FINISHED not in piece
        and piece.count(END_OF_EVENT) == piece.count(FIRST_CHOICE)
    )


def may_be_usage(beginning: bytearray) -> bool:
    """Whether an event that begins like this may be the one with usage."""
    if not beginning.startswith(_DATA[: len(beginning)]):
        return False
    at = beginning.find(_CHOICES, 0, _LONGEST_HEAD)
    if at < 0:
        return len(beginning) <= _LONGEST_HEAD
    following = at + len(_CHOICES)
    return len(beginning) == following or beginning.startswith(b"]", following)
