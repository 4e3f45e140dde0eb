"""What settings are made of: the base of their groups, and the field types that pydantic lacks.

``format`` is the name of such a type in docs/settings.md.
"""

import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import from_json

from sidecar.tls import verifying

DURATION: Final = re.compile(r"([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)\s*(ms|s|m|h)?", re.ASCII)
"""A duration as text: its number and its unit, if it has one."""
_UNITS: Final = {"h": 3600, "m": 60, "s": 1, None: 1}
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})", re.ASCII)
_ADDRESS_FORM: Final = "host:port or [IPv6]:port; port 0 picks a free one"
_SOCKET_PATH: Final = 107  # bytes; Linux: sockaddr_un.sun_path has 108, the last of them NUL
_EDGES: Final = "list of 1 to 8 numbers from 0 up, strictly increasing, with at most two decimals"


class Group(BaseModel):
    """Frozen, without unknown keys; a key without a value counts as not set."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        # most groups are only ever validated as a part of all settings
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            key: value
            for key, value in values.items()
            if value is not None or key not in cls.model_fields
        }


def from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Parses a value that is text, as in the environment.

    Other values, such as YAML's lists and mappings or those given in code, stay as they are.
    """
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _seconds(text: str) -> float:
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected duration, a number of seconds or a number and ms, s, m or h")

    number, unit = match.groups()
    if unit == "ms":
        return float(number) / 1000  # multiplied by 0.001, some values would be off by one bit
    return float(number) * _UNITS[unit]


def parse_duration(text: str, low: float, high: float) -> float:
    """Parses ``500ms``, ``1s``, ``5m``, ``1h`` or a number of seconds into seconds.

    The result must be from ``low`` to ``high``, both inclusive.

    Raises:
        ValueError: anything else; the message says what is expected.
    """
    seconds = _seconds(text)
    if not low <= seconds <= high:
        raise ValueError(f"expected duration, {low:g} to {high:g} seconds")
    return seconds


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host name or IP address without brackets, and a port.

    Port 0 lets the kernel choose one.
    """

    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of the machine, IPv4 and IPv6."""
        return self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared

    @property
    def local(self) -> "Address":
        """Where a client on this machine reaches it: at IPv4's loopback if it is a wildcard.

        Even a machine in an IPv6-only network has that.
        """
        return Address("127.0.0.1", self.port) if self.is_wildcard else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _parse_address(value: object) -> Address:
    if isinstance(value, Address):
        return value

    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected {_ADDRESS_FORM}")

    ipv6, name, port = match.groups()
    if int(port) > 65535:
        raise ValueError(f"expected {_ADDRESS_FORM}")

    return Address(ipv6 or name, int(port))


def parse_base_url(text: str) -> str:
    """Parses an http or https URL; removes a trailing slash or ``/metrics``.

    It may contain a path and user information.

    Raises:
        ValueError: anything else; the message says what is expected.
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        usable = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False

    # ``urlsplit`` would silently drop some of these characters.
    if not usable or not text.isprintable() or set(text) & set(" \\?#"):
        raise ValueError(
            "expected http or https URL without query and fragment, such as http://HOST:PORT"
        )

    path = url.path.rstrip("/").removesuffix("/metrics")
    return f"{url.scheme}://{url.netloc}{path}"


def _without_user(url: str) -> str:
    if "@" in urlsplit(url).netloc:
        raise ValueError("must not have user information, because alerts and metrics show it")
    return url


def json_text(expected: str) -> BeforeValidator:
    """Parses a list or mapping, which is JSON in the environment.

    ``expected`` describes it in error messages.
    """

    def decode(text: str) -> object:
        try:
            return from_json(text)
        except ValueError as error:
            raise ValueError(f"expected {expected} (not valid JSON: {error})") from None

    return from_text(decode)


def _ascending(edges: tuple[float, ...]) -> tuple[float, ...]:
    is_rising = all(a < b for a, b in pairwise((-0.01, *edges, inf)))
    # The plug-in counts by hundredths.
    if not is_rising or any(round(edge, 2) != edge for edge in edges):
        raise ValueError(f"expected {_EDGES}")
    return edges


def _with_certificates(path: Path) -> Path:
    try:
        verifying(path)
    except ssl.SSLError:
        raise ValueError("no certificate in this file; expected path of a PEM file") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    return path


def _bindable(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path) or len(os.fsencode(path)) > _SOCKET_PATH:
        raise ValueError(f"expected absolute path of at most {_SOCKET_PATH} bytes")
    return path


_CASELESS: Final = from_text(lambda text: text.strip().lower())
Duration = Annotated[
    float, from_text(_seconds), Field(json_schema_extra={"format": "duration in seconds"})
]
Share = Annotated[float, Field(ge=0, le=1)]
Level = Annotated[Literal["debug", "info", "warning", "error"], _CASELESS]
Format = Annotated[Literal["auto", "json", "console"], _CASELESS]
ListenAddress = Annotated[
    Address,
    PlainValidator(_parse_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": _ADDRESS_FORM, "pattern": f"^{_ADDRESS.pattern}$"}),
]
_URL_FORM = WithJsonSchema(
    {
        "type": "string",
        "format": "http or https URL, a path allowed",
        "pattern": r"^https?://[^\s?#\\]+$",
    }
)
BaseUrl = Annotated[str, AfterValidator(parse_base_url), _URL_FORM]
LinkUrl = Annotated[BaseUrl, AfterValidator(_without_user)]  # for people to open
Edges = Annotated[
    tuple[float, ...],
    Field(min_length=1, max_length=8),
    from_text(lambda text: text.strip().removeprefix("[").removesuffix("]").split(",")),
    AfterValidator(_ascending),
    WithJsonSchema(
        {
            "type": ["array", "string"],
            "format": _EDGES,
            "items": {"type": "number", "minimum": 0},
            "minItems": 1,
            "maxItems": 8,
        }
    ),
]
ModelName = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
LabelName = Annotated[str, Field(max_length=63, pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$")]
# RFC 9110, section 5: a token, and text without control characters.
HeaderName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderValue = Annotated[str, Field(max_length=4096, pattern=r"^[\x20-\x7e]*$")]
CertificateFile = Annotated[
    Path,
    AfterValidator(_with_certificates),
    WithJsonSchema({"type": "string", "format": "path of a PEM file"}),
]
SocketPath = Annotated[
    Path,
    AfterValidator(_bindable),
    WithJsonSchema(
        {
            "type": "string",
            "format": f"absolute path of at most {_SOCKET_PATH} bytes",
            "pattern": f"^/.{{1,{_SOCKET_PATH - 1}}}$",
        }
    ),
]
