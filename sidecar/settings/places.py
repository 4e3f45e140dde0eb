"""The kinds of value that name a place: addresses to listen at, URLs, files and names used as labels."""

import os
import re
import ssl
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from sidecar.settings.kinds import Kind

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_SOCKET_PATH_BYTES = 107  # Linux: sockaddr_un.sun_path has 108 bytes, the last of them NUL


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host name or IP address without brackets, and a port; port 0 lets the kernel choose one."""

    host: str
    port: int

    @property
    def local(self) -> "Address":
        """Where a client on this machine reaches it; "all addresses" is none that can be asked."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared
        return Address(everywhere.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen(Kind):
    """An ``Address``, written as ``host:port`` or ``[IPv6]:port``."""

    @override
    def read(self, value: object) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = value.strip().rpartition(":") if isinstance(value, str) else ("", "", "")
        if not _PORT.fullmatch(port) or not _is_host(host):
            raise ValueError("not an address; write host:port or [IPv6]:port, such as 0.0.0.0:9911")
        if int(port) > 65535:
            raise ValueError("no such port; write 0 to 65535")
        return Address(host.removeprefix("[").removesuffix("]"), int(port))

    @override
    def describe(self) -> str:
        return "host:port or [IPv6]:port; port 0 picks a free one"

    @override
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.to_string_ser_schema()
        return core_schema.no_info_plain_validator_function(self.read, serialization=text)


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return bool(_HOST.fullmatch(host))
    try:
        IPv6Address(host[1:-1])
    except AddressValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class BaseUrl(Kind):
    """An http or https URL, as a str without a trailing slash; a path and user information may be in it."""

    @override
    def read(self, value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        url = _split(text)
        if url is None:
            raise ValueError("not an http or https URL; write one such as http://127.0.0.1:8000")
        if "?" in text or "#" in text:
            raise ValueError("has a query or a fragment; write the URL without it")
        path = url.path.rstrip("/")
        if path.endswith("/metrics"):
            raise ValueError("ends in /metrics, which is added to it; write the URL without it")
        return f"{url.scheme}://{url.netloc}{path}"

    @override
    def describe(self) -> str:
        return "http or https URL, a path allowed"


def _split(text: str) -> SplitResult | None:
    if not text.isprintable() or " " in text or "\\" in text:  # urlsplit would quietly drop some of these
        return None
    try:
        url = urlsplit(text)
        usable = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    return url if usable else None


@dataclass(frozen=True, slots=True)
class Name(Kind):
    """A str of ``low`` to ``high`` characters that matches ``pattern`` throughout."""

    high: int
    pattern: str
    allowed: str

    @override
    def read(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > self.high or not re.fullmatch(self.pattern, value):
            raise ValueError(f"not a name that can be used; write {self.describe()}")
        return value

    @override
    def describe(self) -> str:
        return f"1 to {self.high} {self.allowed}"


@dataclass(frozen=True, slots=True)
class File(Kind):
    """The path of a file, relative to the working directory; whether it is there is not looked at here."""

    @override
    def read(self, value: object) -> Path:
        text = str(value) if isinstance(value, str | Path) else ""
        if not text.strip() or "\0" in text:
            raise ValueError("not a path; write the path of a file")
        return Path(text)

    @override
    def describe(self) -> str:
        return "path of a file"


@dataclass(frozen=True, slots=True)
class CertificateFile(File):
    """The path of a PEM file that holds at least one certificate now."""

    @override
    def read(self, value: object) -> Path:
        path = File.read(self, value)
        try:
            ssl.create_default_context(cafile=str(path))
        except ssl.SSLError:
            raise ValueError("holds no usable certificate; write the path of a PEM file of CA certificates") from None
        except OSError as error:
            raise ValueError(f"can't be read ({error.strerror}); write the path of a readable PEM file") from None
        return path

    @override
    def describe(self) -> str:
        return "path of a PEM file"


@dataclass(frozen=True, slots=True)
class SocketFile(File):
    """The absolute path of a Unix socket, short enough for the kernel."""

    @override
    def read(self, value: object) -> Path:
        path = File.read(self, value)
        if not path.is_absolute():
            raise ValueError("not an absolute path; write one such as /run/specdec/events.sock")
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise ValueError(f"too long for a Unix socket; write at most {_SOCKET_PATH_BYTES} bytes")
        return path

    @override
    def describe(self) -> str:
        return f"absolute path of at most {_SOCKET_PATH_BYTES} bytes"
