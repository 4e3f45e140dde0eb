"""A receiver in another process, which throws all packets away."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RECEIVER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1]); listener.listen(64); print(flush=True)
import selectors
selector = selectors.DefaultSelector(); selector.register(listener, 1)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], 1)
        elif not key.fileobj.recv(65536):
            selector.unregister(key.fileobj)
"""


@contextmanager
def receiving(path: str) -> Iterator[str]:
    """Listens at the path."""
    receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, path], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    try:
        yield path
    finally:
        receiver.kill()
        receiver.wait()
