"""Single JSON values, as vLLM understands them: from raw JSON to a number that is right, or to none.

A request's values are read as leniently as vLLM reads them (pydantic's lax mode takes ``"0.7"`` and ``2.0``).
Nothing here raises on any input.
"""

import math
from typing import Final

import msgspec

UNKNOWN_TEMPERATURE: Final = math.nan
"""The request gave a temperature, or may have, that could not be read. None would claim that it gave none."""

ABSENT: Final = msgspec.Raw()
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding bytes from anywhere may raise: malformed JSON, deep nesting, text that is not UTF-8."""

_NULL: Final = msgspec.Raw(b"null")
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_TRUE_WORDS: Final = frozenset({"1", "t", "true", "on", "y", "yes"})
LARGEST_COUNT: Final = 2**53  # what a double holds exactly; no real count comes near
_LONGEST_NUMBER: Final = 64  # bytes of JSON; vLLM takes no number that needs more
LONGEST_NAME: Final = 256

_SCALAR: Final = msgspec.json.Decoder(float | int | str | bool | None)
_NAME: Final = msgspec.json.Decoder(str)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a field is there and not null."""
    return len(raw) > 0 and raw != _NULL


def name(raw: msgspec.Raw) -> str | None:
    """A model's name; None: not given, not a string, or too long to be one."""
    if not 2 < len(raw) <= LONGEST_NAME:
        return None
    try:
        return _NAME.decode(raw)
    except UNREADABLE:
        return None


def temperature(raw: msgspec.Raw) -> float | None:
    """A request's temperature: finite and not negative; None: not given; UNKNOWN_TEMPERATURE: anything else."""
    if not is_given(raw):
        return None
    value = _number(raw)
    return value if value is not None and value >= 0 else UNKNOWN_TEMPERATURE


def whole(raw: msgspec.Raw) -> int | None:
    """A request's whole number from 0 to 2**53; None: not given, or nothing that vLLM would take."""
    value = _number(raw)
    return int(value) if value is not None and 0 <= value <= LARGEST_COUNT and value.is_integer() else None


def plausible(count: int | None) -> int | None:
    """A count that can be one: from 0 to 2**53."""
    return count if count is not None and 0 <= count <= LARGEST_COUNT else None


def flag(raw: msgspec.Raw) -> bool:
    """A request's switch; anything but a form of "true" is off."""
    if raw == _TRUE:
        return True
    if not 0 < len(raw) <= _LONGEST_NUMBER or raw == _FALSE:
        return False
    try:
        value = _SCALAR.decode(raw)
    except UNREADABLE:
        return False
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else value == 1


def prompts(raw: msgspec.Raw) -> int:
    """How many prompts a completion's ``prompt`` or ``prompt_embeds`` holds; 0: none.

    A string or a list of token ids is one; a list of strings or of lists is as many as it has items.
    """
    if not is_given(raw):
        return 0
    head = bytes(memoryview(raw)[:_LONGEST_NUMBER]).split(None)
    start = b"".join(head)[:2]
    if start[:1] != b"[" or start[1:] not in (b'"', b"["):
        return 0 if start == b"[]" else 1
    try:
        return len(_ITEMS.decode(raw))
    except UNREADABLE:
        return 1


def _number(raw: msgspec.Raw) -> float | None:
    """A finite number as pydantic's lax mode takes it: a JSON number, a boolean, or a string of a number."""
    if not 0 < len(raw) <= _LONGEST_NUMBER:
        return None
    try:
        value = _SCALAR.decode(raw)
        number = math.nan if value is None else float(value)
    except UNREADABLE:
        return None
    return number if math.isfinite(number) else None
