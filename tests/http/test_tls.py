"""TLS and basic auth on a guarded server, by real handshakes."""

import asyncio
import base64
import os
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from sidecar.http import listener as listener_module
from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer, GuardOptions, Refusal
from tests.http.certificates import Authority, hashed
from tests.http.test_guard import Site, ended, response, until
from tests.requests.proxy.proxy_doubles import Log

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def authority(tmp_path):
    return Authority.new(tmp_path)


@asynccontextmanager
async def secured(path, look_every=0.0, **options):
    site, app, log = Site(), web.Application(), Log()
    app.router.add_get("/", site.quick)
    app.router.add_get("/slow", site.slow)
    app.router.add_get("/large", site.large)
    app.router.add_get("/open", site.quick)
    app.router.add_post("/", site.echo)
    access = Access(path, log, look_every)
    server = GuardedServer(app, GuardOptions(open_paths=frozenset({"/open"}), **options), access)
    _, server.port = await server.start("127.0.0.1", 0)
    server.site, server.log, server.access = site, log, access
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server, context):
    reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def status(server, context=None, path="/", **options):
    scheme = "http" if context is None else "https"
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{scheme}://localhost:{server.port}{path}", **options) as answer,
    ):
        await answer.read()
        return answer.status


async def test_requests_over_tls(authority):
    async with secured(authority.web_config()) as server:
        async with connected(server, authority.trusting()) as (reader, writer):
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            for _ in range(3):
                writer.write(GET)
                assert await response(reader) == b"200 quick"
            body = os.urandom(1_000_000)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert await response(reader) == b"200 " + body
            assert server.connections == 1
        await until(lambda: server.connections == 0)


async def test_what_is_sent_with_the_handshakes_end_is_not_lost(authority):
    """By a client that writes the request and the last of its handshake as one."""
    async with secured(authority.web_config()) as server:
        for _ in range(10):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = authority.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            while True:
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
                else:
                    break
            tls.write(GET)
            writer.write(outgoing.read())
            answer = b""
            while b"quick" not in answer:
                incoming.write(await reader.read(65_536))
                try:
                    answer += tls.read(65_536)
                except ssl.SSLWantReadError:
                    continue
            writer.transport.abort()


async def test_plain_http_and_a_stranger_to_the_authority_get_nothing(authority):
    async with secured(authority.web_config()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        assert b"HTTP" not in await ended(reader)
        await until(lambda: server.refusals[Refusal.TLS] == 1)
        writer.close()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(server, ssl.create_default_context())


@pytest.mark.parametrize(
    ("required", "expected"), [("VerifyClientCertIfGiven", 200), ("RequireAndVerifyClientCert", 0)]
)
async def test_client_certificates(authority, tmp_path, required, expected):
    path = authority.web_config(client_ca_file=authority.certificate.name, client_auth_type=required)
    (tmp_path / "strangers").mkdir()
    stranger = Authority.new(tmp_path / "strangers", "stranger")
    others = authority.trusting()
    others.load_cert_chain(*stranger.issue("client"))
    async with secured(path) as server:
        assert await status(server, authority.trusting("client")) == 200
        assert await status_or_none(server, authority.trusting()) == expected
        assert await status_or_none(server, others) == 0
        assert server.connections == 0


async def status_or_none(server, context):
    try:
        return await status(server, context)
    except (aiohttp.ClientError, ssl.SSLError):
        return 0


async def test_tls_1_2_where_1_3_is_the_least(authority):
    old = authority.trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(authority.web_config()) as server:
        assert await status(server, old) == 200
    async with secured(authority.web_config(min_version="TLS13")) as server:
        assert await status_or_none(server, old) == 0


async def test_a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not(authority, tmp_path):
    async with secured(authority.web_config()) as server, connected(server, authority.trusting()) as (reader, writer):
        first = await certificate(server, authority)
        authority.issue("server")
        second = await certificate(server, authority)
        assert first != second
        (tmp_path / "server.key.pem").write_text("broken")
        for _ in range(3):
            assert await certificate(server, authority) == second
        assert server.access.outcomes == {"applied": 1, "refused": 1}
        authority.issue("server")
        assert await certificate(server, authority) not in {first, second}
        writer.write(GET)  # the old connection lives on
        assert await response(reader) == b"200 quick"
    refused = [event for event, _ in server.log.events if "refused" in event]
    assert refused == ["web configuration refused; the old one stays in force"]


async def certificate(server, authority):
    async with connected(server, authority.trusting()) as (_, writer):
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)


async def test_protection_is_never_turned_off_by_a_change_of_the_file(authority):
    path = authority.web_config(users={"a": "b"})
    async with secured(path) as server:
        for text in ("", f"basic_auth_users: {{a: {hashed('b')}}}", path.read_text().partition("tls_server")[0]):
            path.write_text(text)
            assert await status(server, authority.trusting()) == 401
        authority.web_config()  # without users
        assert await status(server, authority.trusting()) == 401


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", os.urandom(4096)])
async def test_a_handshake_that_does_not_end_is_cut(authority, sent):
    async with secured(authority.web_config(), header_seconds=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        await ended(reader)
        await until(lambda: server.refusals[Refusal.TLS] == 1)
        assert await status(server, authority.trusting()) == 200
        writer.close()


async def test_a_client_that_goes_within_its_handshake_leaves_nothing(authority):
    async with secured(authority.web_config()) as server:
        for _ in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16")
            writer.transport.abort()
        assert await status(server, authority.trusting()) == 200
        await until(lambda: server.connections == 0 and not server._listener._opening)


async def test_open_handshakes_keep_nobody_out(authority, monkeypatch):
    monkeypatch.setattr(listener_module, "_PATIENCE", 0.05)
    async with secured(authority.web_config(), header_seconds=60) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(300)]
        assert await status(server, authority.trusting()) == 200
        await until(lambda: server.refusals[Refusal.TLS] >= 300 - 256)
        assert len(server._listener._opening) <= 256
        for _, writer in silent:
            writer.transport.abort()


async def test_a_reader_that_reads_nothing_is_cut_over_tls_too(authority):
    async with (
        secured(authority.web_config(), idle_seconds=0.2) as server,
        connected(server, authority.trusting()) as (_, writer),
    ):
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server.refusals[Refusal.TIMEOUT] == 1)
        await until(lambda: server.connections == 0)


async def test_a_running_request_ends_with_its_server_over_tls_too(authority):
    async with (
        secured(authority.web_config(), shutdown_seconds=0.1) as server,
        connected(server, authority.trusting()) as (reader, writer),
    ):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server.site.running)
        half = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server._listener._opening)
        await server.stop()
        assert await ended(reader) == b""
        assert await ended(half[0]) == b""
        half[1].close()


async def test_passwords(authority):
    async with secured(authority.web_config(tls=False, users={"prometheus": "secret"})) as server:
        assert await status(server) == 401
        assert await status(server, headers=basic("prometheus", "wrong")) == 401
        assert await status(server, headers=basic("prometheus", "secret")) == 200
        assert await status(server, path="/open") == 200
        for path in ("/open/", "//open", "/%6fpen/../", "/OPEN", "/open/../slow"):
            assert await status(server, path=path, headers=basic("x", "y")) in {401, 429}
        assert server.refusals[Refusal.UNAUTHORIZED] >= 2
        authority.web_config(tls=False, users={"prometheus": "new"})
        assert await status(server, headers=basic("prometheus", "secret")) == 401
        assert await status(server, headers=basic("prometheus", "new")) == 200


async def test_a_refused_request_names_the_scheme_and_quotes_nothing(authority):
    async with (
        secured(authority.web_config(tls=False, users={"prometheus": "secret"})) as server,
        aiohttp.ClientSession() as session,
        session.get(f"http://localhost:{server.port}/", headers=basic("somebody", "guess")) as answer,
    ):
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="specdec-sidecar", charset="UTF-8"'
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert await answer.text() == "unauthorized\n"
