"""Addresses to listen on, and URLs."""

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})", re.ASCII)
_FORM = "host:port or [IPv6]:port; port 0 picks a free one"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host name or IP address without brackets, and a port; port 0 lets the kernel choose one."""

    host: str
    port: int

    @property
    def local(self) -> "Address":
        """The address at which a client on this machine reaches it: loopback if it is the wildcard address."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared
        return Address(loopback.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _parse_address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"expected {_FORM}")
    return Address(match[1] or match[2], int(match[3]))


def parse_base_url(text: str) -> str:
    """An http or https URL without a trailing slash or ``/metrics``; a path and user information may be in it.

    Raises:
        ValueError: anything else; the message says what is expected.
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        usable = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or set(text) & set(" \\?#"):  # urlsplit would silently drop some of these
        raise ValueError("expected http or https URL without query and fragment, such as http://HOST:PORT")
    path = url.path.rstrip("/").removesuffix("/metrics")
    return f"{url.scheme}://{url.netloc}{path}"


def _without_user(url: str) -> str:
    """An address for people to open, which alerts and metrics show."""
    if "@" in urlsplit(url).netloc:
        raise ValueError("must not have user information, because alerts and metrics show it")
    return url


ListenAddress = Annotated[
    Address, PlainValidator(_parse_address), PlainSerializer(str), WithJsonSchema({"format": _FORM})
]
BaseUrl = Annotated[
    str, AfterValidator(parse_base_url), WithJsonSchema({"format": "http or https URL, a path allowed"})
]
LinkUrl = Annotated[BaseUrl, AfterValidator(_without_user)]
