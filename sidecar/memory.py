"""Keeps the process small: glibc otherwise keeps what large pages needed for a moment."""

import ctypes
from contextlib import suppress
from typing import Final

# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_LARGE: Final = 256 * 1024  # bytes: blocks from here on go back to the system when they are freed
_ARENAS: Final = 1  # pages are read in threads, of which each would have memory of its own


def return_freed_memory() -> None:
    """From now on, freed memory of large blocks goes back to the system; only with glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_ARENA_MAX, _ARENAS)
