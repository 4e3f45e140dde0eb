"""What has been written to a connection, but not sent.

A TLS transport reports only its own buffer. The buffer of the transport below it is not accessible; it holds bytes only
while the kernel's queue is full, so that queue is checked instead.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Final

_TCP_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = 120  # where struct tcp_info has tcpi_bytes_acked (linux/tcp.h, since Linux 4.1)
# A sandbox's kernel does not say; the socket is closed; asyncio's TLS transport has none any more.
_UNKNOWN: Final = (OSError, ValueError, AttributeError)


def is_sending(transport: asyncio.WriteTransport) -> bool:
    """Whether something written is still to be sent.

    A TLS transport that is closing may hold some unseen; it ends by itself, within its timeout.
    """
    return _unsent(transport) > 0 or (transport.is_closing() and _is_tls(transport))


def progress(transport: asyncio.WriteTransport) -> tuple[int, int]:
    """A value that changes whenever the other end receives some of what was written."""
    if _is_tls(transport):
        return _unsent(transport), _acknowledged(transport.get_extra_info("socket"))
    return transport.get_write_buffer_size(), 0


def _is_tls(transport: asyncio.WriteTransport) -> bool:
    return transport.get_extra_info("sslcontext") is not None


def _unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes waiting to be sent; with TLS those in the kernel count too."""
    size = transport.get_write_buffer_size()
    if _is_tls(transport):
        with suppress(*_UNKNOWN):
            found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            size += int.from_bytes(found, "little")
    return size


def _acknowledged(peer: socket.socket) -> int:
    """Bytes that the other end's kernel has acknowledged so far; 0 if ours does not say."""
    with suppress(*_UNKNOWN):
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_BYTES_ACKED:], "little")
    return 0
