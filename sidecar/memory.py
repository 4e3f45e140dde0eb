"""Keeps the process small: without what libraries load or keep and nothing here uses."""

import ctypes
import os
from contextlib import suppress
from importlib import import_module
from typing import Final

_CERTIFICATES: Final = "SSL_CERT_FILE"  # OpenSSL's variable for a file of them
# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_LARGE: Final = 256 * 1024  # bytes: blocks from here on go back to the system when they are freed
_ARENAS: Final = 1  # pages are read in threads, of which each would have memory of its own


def load_aiohttp() -> None:
    """Imports aiohttp without the system's certificates: it reads them twice, for 2.7 MiB.

    They are for clients that name no context of their own; all of this program do (``tls.py``).
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
    """From now on, freed memory of large blocks goes back to the system; only with glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_ARENA_MAX, _ARENAS)
