"""The field types that pydantic lacks, and how every type is described in the reference and in messages.

If a validator raises an empty ``ValueError``, the message is what ``expected`` says about this field.
"""

import json
import math
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from annotated_types import Ge, Le
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_core import from_json

_DURATION = re.compile(r"([0-9.eE+-]+)\s*(ms|s|m|h)", re.ASCII)
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}  # seconds
_SOCKET_PATH_BYTES: Final = 107  # Linux: sockaddr_un.sun_path has 108 bytes, the last of them NUL


@dataclass(frozen=True, slots=True)
class Notation:
    """How a value is written: ``noun`` names its form, ``render`` gives a value as an operator would write it."""

    noun: str
    render: Callable[[Any], str] = str


def render_number(value: float) -> str:
    """The shortest text that parses as the same number; whole numbers without a decimal point."""
    return str(int(value)) if value == int(value) else repr(value)


def render_duration(seconds: float) -> str:
    """A duration in the largest unit in which it is a whole number, else in seconds."""
    for unit, length in _UNITS.items():
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    if 0 < seconds < 1 and round(seconds * 1000) / 1000 == seconds:
        return f"{round(seconds * 1000)}ms"
    return f"{render_number(seconds)}s"


def _to_seconds(value: object) -> object:
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    number, unit = float(match[1]), match[2]
    return number / 1000 if unit == "ms" else number * _UNITS[unit]  # times 0.001 would miss some values by a bit


def parse_duration(text: str, low: float, high: float) -> float:
    """Seconds, ``low`` to ``high`` inclusive, from ``500ms``, ``1s``, ``5m``, ``1h`` or a number of seconds.

    Raises:
        ValueError: anything else; the message says what is expected.
    """
    try:
        seconds = float(str(_to_seconds(text)))
    except ValueError:
        seconds = math.nan
    if not low <= seconds <= high:
        raise ValueError(f"expected duration, {render_duration(low)} to {render_duration(high)}")
    return seconds


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _decode_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return from_json(value)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _bucket_edges(value: object) -> tuple[float, ...]:
    parts = value.strip().removeprefix("[").removesuffix("]").split(",") if isinstance(value, str) else value
    try:
        edges = tuple(float(part) for part in parts)  # type: ignore[attr-defined]  # else a TypeError
    except (TypeError, ValueError):
        raise ValueError from None
    if not 1 <= len(edges) <= 8 or edges[0] < 0 or not all(a < b for a, b in pairwise((*edges, math.inf))):
        raise ValueError
    if any(round(edge, 2) != edge for edge in edges):
        raise ValueError("expected at most two decimals, since the plug-in counts by hundredths")
    return edges


def _readable_certificates(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ValueError("no certificate in this file; expected path of a PEM file") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    return path


def _bindable(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path) or len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise ValueError
    return path


Duration = Annotated[float, BeforeValidator(_to_seconds), Notation("duration", render_duration)]
Bytes = Annotated[int, Notation("whole number of bytes")]
Share = Annotated[float, Field(ge=0, le=1)]
Level = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]
Format = Annotated[Literal["auto", "json", "console"], BeforeValidator(_lower)]
JsonText = BeforeValidator(_decode_json)  # lists and mappings: YAML's own, or JSON in an environment variable
Edges = Annotated[
    tuple[float, ...],
    BeforeValidator(_bucket_edges),
    Notation(
        "list of 1 to 8 numbers from 0 up, strictly increasing, with at most two decimals",
        lambda edges: f"[{', '.join(map(render_number, edges))}]",
    ),
]
HostName = Annotated[str, BeforeValidator(_lower), Field(max_length=253, pattern=r"^(\*|[a-z0-9._-]+)$")]
ModelName = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
CertificateFile = Annotated[Path, AfterValidator(_readable_certificates), Notation("path of a PEM file")]
SocketPath = Annotated[
    Path, AfterValidator(_bindable), Notation(f"absolute path of at most {_SOCKET_PATH_BYTES} bytes")
]


def json_notation(noun: str) -> Notation:
    """The notation of a list or a mapping."""
    return Notation(f"{noun} (JSON in the environment)", json.dumps)


def notation(field: FieldInfo) -> Notation:
    """How a field's value is written, without its range."""
    options = (field.annotation, *get_args(field.annotation))  # X, or the X of ``X | None``
    metadata = (*field.metadata, *(part for option in options for part in get_args(option)[1:]))
    found = next((part for part in metadata if isinstance(part, Notation)), None)
    if found is not None:
        return found
    if all(isinstance(option, str) for option in options[1:]) and options[1:]:
        return Notation(f"{', '.join(options[1:-1])} or {options[-1]}")
    if bool in options:
        return Notation("true or false", lambda value: str(value).lower())
    return Notation("whole number") if int in options else Notation("number", render_number)


def expected(field: FieldInfo) -> str:
    """The form and the range of a field's value: ``duration, 100ms to 5m``."""
    form = notation(field)
    low = next((part.ge for part in field.metadata if isinstance(part, Ge)), None)
    high = next((part.le for part in field.metadata if isinstance(part, Le)), None)
    return form.noun if low is None else f"{form.noun}, {form.render(low)} to {form.render(high)}"
