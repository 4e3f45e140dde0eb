"""TLS and basic auth on a guarded server, by real handshakes."""

import asyncio
import gc
import ssl
import threading
from asyncio.sslproto import SSLProtocol

import aiohttp
import bcrypt
import pytest

from sidecar.http.connections import Refusal
from sidecar.settings.web_config import read_web_config
from tests.http.certificates import Authority
from tests.http.servers import basic, ended, get, guarded, response
from tests.waiting import START_SECONDS, until


async def status(server, context=None, path="/", user=None, password=""):
    """The status of a request; 0 if there is no answer."""
    scheme = "http" if context is None else "https"
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    headers = {"Authorization": basic(user, password)} if user else {}
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{scheme}://127.0.0.1:{server.port}{path}", headers=headers) as answer,
        ):
            await answer.read()
            return answer.status
    except (aiohttp.ClientError, ssl.SSLError):
        return 0


async def test_plain_http_and_a_client_that_does_not_trust_the_certificate_get_nothing(authority):
    """With a certificate set, nothing is served without TLS."""
    async with guarded(authority.web_config()) as (server, _, connect):
        reader, _ = await connect(get())
        assert b"HTTP" not in await ended(reader)
        await until(lambda: server.connections.refusals[Refusal.TLS], 1)

        assert await status(server, ssl.create_default_context()) == 0


@pytest.mark.parametrize(
    ("required", "expected"), [("VerifyClientCertIfGiven", 200), ("RequireAndVerifyClientCert", 0)]
)
async def test_a_client_certificate_is_verified_and_may_be_required(
    authority, tmp_path, required, expected
):
    """One of another authority is refused, whether or not one is required."""
    path = authority.web_config(
        client_ca_file=authority.certificate.name, client_auth_type=required
    )
    (tmp_path / "strangers").mkdir()
    stranger = Authority(tmp_path / "strangers", "stranger")
    others = authority.trusting()
    others.load_cert_chain(*stranger.issue("client"))
    async with guarded(path) as (server, _, _):
        assert await status(server, authority.trusting("client")) == 200
        assert await status(server, authority.trusting()) == expected
        assert await status(server, others) == 0
        await until(lambda: len(server.connections.open), 0)


async def test_a_new_certificate_serves_new_connections_and_leaves_old_ones_open(authority):
    """A renewal of the certificate interrupts no client."""
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
        writer.write(get())

        assert await response(reader) == b"200 quick"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", bytes(range(256)) * 16])
async def test_a_handshake_that_does_not_end_is_cut_off(authority, sent):
    """Whether the client sends nothing, its beginning, or something else."""
    async with guarded(authority.web_config(), handshake_seconds=0.2) as (server, _, connect):
        reader, _ = await connect(sent)
        await ended(reader)
        await until(lambda: server.connections.refusals[Refusal.TLS], 1)
        async with asyncio.timeout(START_SECONDS):
            while await status(server, authority.trusting()) != 200:
                pass  # a busy machine's own handshake may take as long


async def test_unfinished_handshakes_keep_nobody_out_and_hold_no_memory(authority):
    """asyncio has 256 KiB for each: those that gave way must not wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        async with guarded(authority.web_config(), handshake_seconds=60) as (server, _, connect):
            for _ in range(300):
                await connect()
            assert await status(server, authority.trusting()) == 200
            assert server.connections.refusals[Refusal.GAVE_WAY] >= 300 - 64
            assert len(server.connections.open) <= 64
            await until(
                lambda: sum(isinstance(held, SSLProtocol) for held in gc.get_objects()) < 100
            )
    finally:
        gc.enable()


async def test_all_but_open_paths_need_a_users_password(authority):
    """No other spelling of an open path is open; new users are in force at once."""
    path = authority.web_config(tls=False, users={"prometheus": "secret"})
    async with guarded(path) as (server, _, connect):
        assert await status(server) == 401
        assert await status(server, user="prometheus", password="wrong") == 401
        assert await status(server, user="prometheus", password="secret") == 200
        assert await status(server, path="/open") == 200
        for path in ("/open/", "//open", "/%6fpen/../", "/OPEN", "/open/../slow"):
            assert await status(server, path=path, user="x", password="y") == 401
        assert server.connections.refusals[Refusal.UNAUTHORIZED] == 7
        reader, _ = await connect(get())
        assert await response(reader) == b"401 unauthorized\n"
        server.web_config = read_web_config(
            authority.web_config(tls=False, users={"prometheus": "new"})
        )

        assert await status(server, user="prometheus", password="secret") == 401
        assert await status(server, user="prometheus", password="new") == 200


async def test_guesses_do_not_pile_up_and_do_not_delay_a_client_with_the_right_password(
    authority, monkeypatch
):
    """Prometheus goes on scraping while somebody guesses."""
    check = bcrypt.checkpw
    go_on = threading.Event()
    calls = []

    def slow(password, hashed):
        calls.append(password)
        assert go_on.wait(30)
        return check(password, hashed)

    path = authority.web_config(tls=False, users={"prometheus": "secret"})
    async with guarded(path) as (server, _, connect):
        assert await status(server, user="prometheus", password="secret") == 200
        monkeypatch.setattr(bcrypt, "checkpw", slow)
        for number in range(100):
            _, writer = await connect(
                get("/", f"Authorization: {basic('prometheus', f'wrong {number}')}")
            )
            if number % 2:
                writer.transport.abort()
        assert await status(server, user="prometheus", password="secret") == 200
        await until(lambda: calls and len(server.connections.open) <= 50)
        go_on.set()

        assert await status(server, user="prometheus", password="not known yet") == 401
        assert len(calls) <= 52
