"""Types for command-line arguments.

On an error argparse names the argument, prints the message and exits with 2.
"""

import argparse
import math
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from sidecar.errors import InputError
from sidecar.settings import Settings
from sidecar.settings.field_types import parse_base_url, parse_duration
from sidecar.settings.groups import USER_FILE_VARIABLE, USER_VARIABLE
from sidecar.tls import verifying

CACERT_HELP: Final = (
    "CA certificates (PEM) to verify vLLM's certificate (default: the setting vllm_ca_file)"
)
TLS_HINT: Final = (
    "Does vLLM serve TLS there? If not, use http. If it does, is the CA of its certificate in "
    "--cacert or the setting vllm_ca_file, and the URL's host name in the certificate?"
)
_LONGEST: Final = 24 * 3600.0  # seconds
_MEBIBYTE: Final = 1024 * 1024
_Value = TypeVar("_Value")


def duration(text: str) -> float:
    """Parses a time such as ``500ms``, ``10m`` or ``1h`` into seconds: from 100 ms to a day."""
    try:
        return parse_duration(text, 0.1, _LONGEST)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def base_url(text: str) -> str:
    """An http or https URL. Error messages never repeat it, since it may hold a password."""
    try:
        return parse_base_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(most: int) -> Callable[[str], int]:
    """A type for whole numbers from 1 to ``most``."""

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {most}")
        return value

    return read


def number_up_to(most: float, expected: str, *, above: float = 0.0) -> Callable[[str], float]:
    """A type for numbers greater than ``above`` and at most ``most``.

    ``expected`` describes them in error messages.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not above < value <= most:
            raise argparse.ArgumentTypeError(f"expected {expected}")
        return value

    return read


def listed(read: Callable[[str], _Value]) -> Callable[[str], tuple[_Value, ...]]:
    """A type for comma-separated values, each parsed by ``read``."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def share_of_one(text: str) -> float:
    """Parses a share such as ``5%`` or ``0.05``: above 0 and at most 1."""
    read = number_up_to(100 if text.endswith("%") else 1, "a share such as 5%")
    return read(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def file_to_write(text: str) -> Path:
    """The path of a file that can be written, as far as can be checked beforehand.

    Otherwise a long measurement would end without a file for its result.
    """
    path = Path(text)
    folder = Path(text).absolute().parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such directory")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: not writable")
    return path


def read_input(path: Path, most: int) -> bytes:
    """Reads the file that an argument names.

    Raises:
        InputError: it cannot be read, or has more than ``most`` bytes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if len(data) > most:
        raise InputError(f"{path}: larger than {most // 1024 // 1024} MiB")
    return data


def written(argument: str, path: Path, content: bytes) -> bool:
    """Writes ``content`` to the file that ``argument`` names, such as ``--out``.

    If that fails, prints why and returns False; the caller must then print the content.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        print(f"{argument}={path}: {error.strerror}; printed instead", file=sys.stderr)
        return False
    return True


def add_duration(parser: argparse.ArgumentParser) -> None:
    """Adds ``--duration``, for commands that otherwise run until Ctrl-C."""
    parser.add_argument(
        "--duration",
        type=duration,
        metavar="TIME",
        help="stop after this long, such as 10m (default: until Ctrl-C)",
    )


def add_vllm_url(parser: argparse.ArgumentParser) -> None:
    """Adds ``--url``, for commands that otherwise read the vLLM of the settings."""
    parser.add_argument(
        "--url",
        type=base_url,
        dest="vllm_url",
        help="vLLM's address (default: SPECDEC_VLLM_URL, where a password belongs)",
    )


def with_vllm_url(settings: Settings, url: str | None) -> Settings:
    """The settings, with vLLM's address replaced by that of ``--url`` if it was given."""
    return settings if url is None else settings.model_copy(update={"vllm_url": url})


def with_vllm_cacert(settings: Settings, path: Path | None) -> Settings:
    """The settings, with vLLM's CA certificates replaced by those of ``--cacert`` if it was given.

    Raises:
        InputError: the file cannot be read or has no certificate.
    """
    if authorities(path) is None:
        return settings
    return settings.model_copy(update={"vllm_ca_file": path})


def add_sidecar_user(parser: argparse.ArgumentParser) -> None:
    """Adds ``--user-file``, for commands that ask a sidecar, which may have a password."""
    parser.add_argument(
        "--user-file",
        type=Path,
        metavar="FILE",
        help=f"file with NAME:PASSWORD of the sidecar (default: {USER_FILE_VARIABLE}, or"
        f" {USER_VARIABLE} with NAME:PASSWORD itself)",
    )


def with_sidecar_user(url: str, file: Path | None, environ: Mapping[str, str]) -> str:
    """The URL of a sidecar, with the user and password from ``--user-file`` or ``environ`` in it.

    Unchanged if it already has a user, or if none is given.

    Raises:
        InputError: the file cannot be read, or what is given is not NAME:PASSWORD.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return url

    if file is None and environ.get(USER_FILE_VARIABLE):
        file = Path(environ[USER_FILE_VARIABLE])

    if file is None:
        source = USER_VARIABLE
        text = environ.get(USER_VARIABLE, "")
    else:
        source = str(file)
        text = read_input(file, _MEBIBYTE).decode(errors="replace")

    if not text.strip() and file is None:
        return url

    name, colon, password = text.rstrip("\r\n").partition(":")
    if not (name and colon and password) or not text.rstrip("\r\n").isprintable():
        raise InputError(f"{source}: expected one line with NAME:PASSWORD")

    user = f"{quote(name, safe='')}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{user}@{parts.netloc}").geturl()


def authorities(path: Path | None) -> ssl.SSLContext | None:
    """A TLS context that verifies servers by the CA certificates in a file; None without a file.

    Raises:
        InputError: the file cannot be read or has no certificate.
    """
    if path is None:
        return None
    try:
        return verifying(path)
    except ssl.SSLError:
        raise InputError(f"{path}: no certificate in this file; expected a PEM file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
