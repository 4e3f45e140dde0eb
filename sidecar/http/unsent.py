"""What has been written to a connection and not sent.

A TLS transport reports its own bytes only, not those of the transport below it, which is not accessible. That one holds
some only while the kernel's queue is full, or was a moment ago.
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


def unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that wait; with TLS those in the kernel count too."""
    size = transport.get_write_buffer_size()
    if transport.get_extra_info("sslcontext") is not None:
        with suppress(OSError):  # closed, or a sandbox's kernel does not know
            found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            size += int.from_bytes(found, "little")
    return size


def is_closing_tls(transport: asyncio.WriteTransport) -> bool:
    """Whether a TLS transport still sends what was written before ``close``; it ends by itself, within its timeout."""
    return transport.is_closing() and transport.get_extra_info("sslcontext") is not None


def acknowledged(peer: socket.socket) -> int:
    """Bytes that the other end's kernel has acknowledged, ever; 0 if the kernel does not say."""
    with suppress(OSError, struct.error):
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_BYTES_ACKED:], "little")
    return 0
