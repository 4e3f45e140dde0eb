"""What a connection has not sent, asked after its end."""

import asyncio

from sidecar.http.unsent import is_sending, progress
from sidecar.settings.web_config import read_web_config
from tests.http.certificates import Authority


class Server(asyncio.Protocol):
    def __init__(self):
        self.transport = None
        self.lost = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(b"hello")

    def connection_lost(self, exc):
        self.lost.set()


async def test_a_tls_connection_that_is_gone_sends_nothing_and_makes_no_progress(tmp_path):
    authority, protocol = Authority.new(tmp_path), Server()
    context = read_web_config(authority.web_config()).tls
    server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("localhost", port, ssl=authority.trusting())
    assert await reader.readexactly(5) == b"hello"
    writer.transport.abort()
    await protocol.lost.wait()
    await asyncio.sleep(0)  # asyncio's TLS lets go of its socket a turn later
    is_sending(protocol.transport)
    assert progress(protocol.transport) == (0, 0)
    server.close()
