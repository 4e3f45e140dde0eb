"""The plug-in's socket in the file system.

It is in a volume that two containers share, usually with different users, so anyone who can enter the folder may
connect: the volume's mounts are the boundary, not the file's mode.
"""

import errno
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE: Final = 0o666
_BACKLOG: Final = 64


def listen(path: Path) -> tuple[socket.socket, int]:
    """A Unix SEQPACKET socket listening at ``path``, in place of one without a listener, and the file's inode.

    Raises:
        FileExistsError: ``path`` is something other than a socket.
        OSError: EADDRINUSE if another process listens there, or what the file system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    listener = _new_socket()
    try:
        listener.bind(str(path))
        path.chmod(_MODE)
        listener.listen(_BACKLOG)
        return listener, path.lstat().st_ino
    except BaseException:
        listener.close()
        raise


def inode(path: Path) -> int:
    """The inode of what is at ``path``; 0 if nothing is, or it cannot be seen."""
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def remove(path: Path, own: int) -> None:
    """Removes the socket's file if its inode is still ``own``, and not a successor's."""
    if inode(path) == own:
        with suppress(OSError):
            path.unlink()


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def _clear(path: Path) -> None:
    """Removes a socket on which no process listens any more."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket, so it is left alone", str(path))
    with _new_socket() as probe:
        answer = probe.connect_ex(str(path))
    if answer in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, "another process listens there", str(path))
    path.unlink()
