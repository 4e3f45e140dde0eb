"""TLS and basic auth on a guarded server, by real handshakes."""

import base64
import gc
import ssl
import threading
from asyncio.sslproto import SSLProtocol

import aiohttp
import bcrypt
import pytest

from sidecar.http.connection import Refusal
from sidecar.settings.files import read_web_config
from tests.http.certificates import Authority
from tests.http.servers import GET, ended, guarded, response, until


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def status(server, context=None, path="/", **options):
    """The status of a request; 0 if there is no answer."""
    scheme = "http" if context is None else "https"
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{scheme}://127.0.0.1:{server.port}{path}", **options) as answer,
        ):
            await answer.read()
            return answer.status
    except (aiohttp.ClientError, ssl.SSLError):
        return 0


async def test_plain_http_and_a_stranger_to_the_authority_get_nothing(authority):
    async with guarded(authority.web_config()) as (server, _, connect):
        reader, _ = await connect(GET)
        assert b"HTTP" not in await ended(reader)
        await until(lambda: server.refusals[Refusal.TLS] == 1)
        assert await status(server, ssl.create_default_context()) == 0


@pytest.mark.parametrize(
    ("required", "expected"), [("VerifyClientCertIfGiven", 200), ("RequireAndVerifyClientCert", 0)]
)
async def test_client_certificates(authority, tmp_path, required, expected):
    path = authority.web_config(client_ca_file=authority.certificate.name, client_auth_type=required)
    (tmp_path / "strangers").mkdir()
    stranger = Authority.new(tmp_path / "strangers", "stranger")
    others = authority.trusting()
    others.load_cert_chain(*stranger.issue("client"))
    async with guarded(path) as (server, _, _):
        assert await status(server, authority.trusting("client")) == 200
        assert await status(server, authority.trusting()) == expected
        assert await status(server, others) == 0
        await until(lambda: server.connections == 0)


async def test_a_new_certificate_serves_new_connections_and_leaves_old_ones_open(authority):
    path = authority.web_config()
    async with guarded(path) as (server, _, connect):
        tls = {"ssl": authority.trusting(), "server_hostname": "localhost"}

        async def connected():
            reader, writer = await connect(**tls)
            return reader, writer, writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]

        reader, writer, before = await connected()
        authority.issue("server")
        server.web_config = read_web_config(path)
        assert (await connected())[2] != before
        writer.write(GET)
        assert await response(reader) == b"200 quick"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", bytes(range(256)) * 16])
async def test_a_handshake_that_does_not_end_is_cut(authority, sent):
    async with guarded(authority.web_config(), handshake_seconds=0.2) as (server, _, connect):
        reader, _ = await connect(sent)
        await ended(reader)
        await until(lambda: server.refusals[Refusal.TLS] == 1)
        while await status(server, authority.trusting()) != 200:
            pass  # a busy machine's own handshake may take as long


async def test_open_handshakes_keep_nobody_out_and_hold_no_memory(authority):
    """asyncio has 256 KiB for each: those that gave way must not wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        async with guarded(authority.web_config(), handshake_seconds=60) as (server, _, connect):
            for _ in range(300):
                await connect()
            assert await status(server, authority.trusting()) == 200
            assert server.refusals[Refusal.GAVE_WAY] >= 300 - 64
            assert server.connections <= 64
            await until(lambda: sum(isinstance(one, SSLProtocol) for one in gc.get_objects()) < 100)
    finally:
        gc.enable()


async def test_passwords(authority):
    path = authority.web_config(tls=False, users={"prometheus": "secret"})
    async with guarded(path) as (server, _, connect):
        assert await status(server) == 401
        assert await status(server, headers=basic("prometheus", "wrong")) == 401
        assert await status(server, headers=basic("prometheus", "secret")) == 200
        assert await status(server, path="/open") == 200
        for path in ("/open/", "//open", "/%6fpen/../", "/OPEN", "/open/../slow"):
            assert await status(server, path=path, headers=basic("x", "y")) == 401
        assert server.refusals[Refusal.UNAUTHORIZED] == 7
        reader, _ = await connect(GET)
        assert await response(reader) == b"401 unauthorized\n"
        server.web_config = read_web_config(authority.web_config(tls=False, users={"prometheus": "new"}))
        assert await status(server, headers=basic("prometheus", "secret")) == 401
        assert await status(server, headers=basic("prometheus", "new")) == 200


async def test_guesses_of_clients_that_leave_do_not_pile_up_and_hold_up_nobody_who_is_known(authority, monkeypatch):
    check, go_on, calls = bcrypt.checkpw, threading.Event(), []

    def slow(password, found):
        calls.append(password)
        assert go_on.wait(240)
        return check(password, found)

    async with guarded(authority.web_config(tls=False, users={"prometheus": "secret"})) as (server, _, connect):
        assert await status(server, headers=basic("prometheus", "secret")) == 200
        monkeypatch.setattr(bcrypt, "checkpw", slow)
        for number in range(100):
            header = basic("prometheus", f"wrong {number}")["Authorization"]
            _, writer = await connect(GET.replace(b"Host: x", f"Host: x\r\nAuthorization: {header}".encode()))
            if number % 2:
                writer.transport.abort()
        assert await status(server, headers=basic("prometheus", "secret")) == 200
        await until(lambda: calls and server.connections <= 50)
        go_on.set()
        assert await status(server, headers=basic("prometheus", "not known yet")) == 401
        assert len(calls) <= 52
