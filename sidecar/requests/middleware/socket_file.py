"""The middleware's socket in the file system, and the user at its other end."""

import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

_MODE: Final = 0o666  # any user of the shared volume may connect
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


def new_socket() -> socket.socket:
    """A Unix SEQPACKET socket that does not block."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def bind(listener: socket.socket, path: Path) -> int:
    """Binds ``listener`` to ``path``, replacing a socket without a listener; returns the socket file's inode.

    Raises:
        FileExistsError: ``path`` is something other than a socket.
        OSError: EADDRINUSE if another process listens there, or what the file system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    listener.bind(str(path))
    path.chmod(_MODE)
    listener.listen(64)
    return path.stat().st_ino


def _clear(path: Path) -> None:
    """Removes a socket on which no process listens any more."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket, so it is left alone", str(path))
    with new_socket() as probe:
        answer = probe.connect_ex(str(path))
    if answer in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
    path.unlink()


def remove(path: Path, inode: int) -> None:
    """Removes our socket file, but not a successor's."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process that connected, as the kernel reports it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
