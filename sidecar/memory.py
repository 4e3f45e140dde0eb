"""Keeps the process small: avoids memory that libraries fill or hold, but nothing here uses."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_SPARING: Final = {
    "SSL_CERT_FILE": os.devnull,  # the file from which OpenSSL loads CA certificates
    "FROZENLIST_NO_EXTENSIONS": "1",
}
# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_LARGE: Final = 256 * 1024  # bytes; a freed block of at least this size goes back to the system
_ARENAS: Final = 1  # by default, each thread that reads pages would get an arena of its own


@contextmanager
def sparing() -> Iterator[None]:
    """Imports within the block leave out what aiohttp would load and nothing here uses.

    That is the system's CA certificates, 2.7 MiB, and the runtime of C++, 1 MiB. aiohttp loads the
    certificates twice at import, for clients that bring no TLS context of their own, which all
    clients in this program do (``tls.py``). Only frozenlist is in C++; its lists, which aiohttp
    reads once a request, are in Python as well.
    """
    before = {name: os.environ.get(name) for name in _SPARING}
    os.environ.update(_SPARING)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def return_freed_memory() -> None:
    """Makes glibc return freed large blocks to the system; no effect with another C library."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_ARENA_MAX, _ARENAS)
