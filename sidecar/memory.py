"""Keeps the process small: avoids memory that libraries fill or hold, but nothing here uses."""

import ctypes
import os
from contextlib import suppress
from importlib import import_module
from typing import Final

_CERTIFICATES: Final = "SSL_CERT_FILE"  # names the file from which OpenSSL loads CA certificates
# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_LARGE: Final = 256 * 1024  # bytes; a freed block of at least this size goes back to the system
_ARENAS: Final = 1  # by default, each thread that reads pages would get an arena of its own


def load_aiohttp() -> None:
    """Imports aiohttp without the system's CA certificates, which would take 2.7 MiB.

    aiohttp loads them twice at import, for clients that bring no TLS context of their own. All
    clients in this program bring one (``tls.py``).
    """
    given = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        import_module("aiohttp")
    finally:
        del os.environ[_CERTIFICATES]
        if given is not None:
            os.environ[_CERTIFICATES] = given


def return_freed_memory() -> None:
    """Makes glibc return freed large blocks to the system; no effect with another C library."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_ARENA_MAX, _ARENAS)
