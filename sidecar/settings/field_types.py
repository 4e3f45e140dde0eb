"""The field types that pydantic lacks; ``format`` is what the reference calls one."""

import os
import re
import ssl
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import from_json

_DURATION = re.compile(r"([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)\s*(ms|s|m|h)?", re.ASCII)
_SECONDS: Final = {"h": 3600, "m": 60, "s": 1, None: 1}
_SOCKET_PATH: Final = 107  # bytes; Linux: sockaddr_un.sun_path has 108, the last of them NUL
_EDGES: Final = "list of 1 to 8 numbers from 0 up, strictly increasing, with at most two decimals"


def _to_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("expected duration, a number of seconds or a number and ms, s, m or h")
    number, unit = float(match[1]), match[2]
    return number / 1000 if unit == "ms" else number * _SECONDS[unit]  # times 0.001 would miss some values by a bit


def parse_duration(text: str, low: float, high: float) -> float:
    """Seconds, ``low`` to ``high`` inclusive, from ``500ms``, ``1s``, ``5m``, ``1h`` or a number of seconds.

    Raises:
        ValueError: anything else; the message says what is expected.
    """
    seconds = _to_seconds(text)
    if not isinstance(seconds, float) or not low <= seconds <= high:
        raise ValueError(f"expected duration, {low:g} to {high:g} seconds")
    return seconds


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def json_text(expected: str) -> BeforeValidator:
    """A list or mapping: YAML's own, or JSON in an environment variable; ``expected`` is for error messages."""

    def decode(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return from_json(value)
        except ValueError as error:
            raise ValueError(f"expected {expected} (not valid JSON: {error})") from None

    return BeforeValidator(decode)


def _split(value: object) -> object:
    return value.strip().removeprefix("[").removesuffix("]").split(",") if isinstance(value, str) else value


def _ascending(edges: tuple[float, ...]) -> tuple[float, ...]:
    is_rising = all(a < b for a, b in pairwise((-0.01, *edges, inf)))
    # The plug-in counts by hundredths.
    if not is_rising or any(round(edge, 2) != edge for edge in edges):
        raise ValueError(f"expected {_EDGES}")
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
    if not path.is_absolute() or "\0" in str(path) or len(os.fsencode(path)) > _SOCKET_PATH:
        raise ValueError(f"expected absolute path of at most {_SOCKET_PATH} bytes")
    return path


Duration = Annotated[float, BeforeValidator(_to_seconds), Field(json_schema_extra={"format": "duration in seconds"})]
Share = Annotated[float, Field(ge=0, le=1)]
Level = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]
Format = Annotated[Literal["auto", "json", "console"], BeforeValidator(_lower)]
Edges = Annotated[
    tuple[float, ...],
    Field(min_length=1, max_length=8),
    BeforeValidator(_split),
    AfterValidator(_ascending),
    WithJsonSchema({"format": _EDGES}),
]
ModelName = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
CertificateFile = Annotated[
    Path, AfterValidator(_readable_certificates), WithJsonSchema({"format": "path of a PEM file"})
]
SocketPath = Annotated[
    Path, AfterValidator(_bindable), WithJsonSchema({"format": f"absolute path of at most {_SOCKET_PATH} bytes"})
]
