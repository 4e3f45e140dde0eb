"""The liveness probe for vLLM's container restarts vLLM for nothing but the sidecar's own word."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest

from sidecar.analysis.engine.health import Ailing, Ailment, HealthReport
from sidecar.engine.engine_key import EngineKey
from sidecar.export.web import PROBES, make_web
from sidecar.http.server import GuardedServer, GuardOptions
from sidecar.settings.web_config import read_web_config
from tests.debian_servers import free_port
from tests.deploy.kubelet import probes, succeeds
from tests.export import reports
from tests.http.certificates import Authority

STALLED = HealthReport(
    ailing=(Ailing(EngineKey("demo", "0"), Ailment.STALLED, 1_800_000_000.0),), most_restarts=2
)


@pytest.fixture(params=probes(), ids=["curl", "python"])
def probe(request):
    """Runs the probe against a port as the kubelet would; returns whether it succeeds in time."""
    return partial(succeeds, request.param)


@asynccontextmanager
async def sidecar(health, web_config=None, *, port=0, **options):
    """The sidecar's pages with such health; yields the port."""
    report = replace(reports.report(reports.model()), health=health)
    app = make_web(lambda: reports.shown(report), lambda: True)
    server = GuardedServer(
        app,
        GuardOptions(open_paths=PROBES, **options),
        read_web_config(web_config) if web_config else None,
    )
    _, port = await server.start("127.0.0.1", port)
    try:
        yield port
    finally:
        await server.stop()


async def test_a_stalled_engine_fails_it_and_a_healthy_one_does_not(probe):
    """Both forms of the probe read the sidecar's answer."""
    async with sidecar(STALLED) as port:
        assert not await probe(port)

    async with sidecar(HealthReport()) as port:
        assert await probe(port)


async def test_it_reads_a_sidecar_with_tls_and_a_password_too(probe, tmp_path):
    """The path needs no password, and the probe does not verify the certificate of its own Pod."""
    authority = Authority(tmp_path, "authority")
    web_config = authority.web_config(users={"reader": "secret"})

    async with sidecar(STALLED, web_config) as port:
        assert not await probe(port)

    async with sidecar(HealthReport(), web_config) as port:
        assert await probe(port)


async def test_a_sidecar_that_requires_a_client_certificate_fails_open(probe, tmp_path):
    """The probe has none, so nothing is known, and vLLM goes on."""
    authority = Authority(tmp_path, "authority")
    web_config = authority.web_config(
        client_ca_file=authority.certificate.name, client_auth_type="RequireAndVerifyClientCert"
    )

    async with sidecar(STALLED, web_config) as port:
        assert await probe(port)


async def test_a_dead_sidecar_fails_open(probe):
    """Nothing listens on the port, as between two starts of the sidecar."""
    async with sidecar(STALLED) as port:
        pass

    assert await probe(port)


@pytest.mark.slow
async def test_a_sidecar_that_keeps_restarting_fails_open(probe):
    """Whether the probe meets it before it listens, as it answers or as it stops."""
    port = free_port()

    async def restart():
        while True:
            async with sidecar(HealthReport(), port=port):
                await asyncio.sleep(0.02)

    restarting = asyncio.create_task(restart())
    try:
        results = {await probe(port) for _ in range(3)}
    finally:
        restarting.cancel()
        await asyncio.gather(restarting, return_exceptions=True)

    assert results == {True}


async def test_a_healthy_engine_passes_while_the_sidecar_has_no_free_connection(probe):
    """Others hold all that it has, and go on to open new ones."""
    async with sidecar(HealthReport(), max_connections=2) as port, AsyncExitStack() as held:
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)

        assert await probe(port)


BUSY = b"HTTP/1.1 503 Service Unavailable\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        BUSY + b"Content-Length: 5\r\n\r\nbusy\n",
        BUSY + b"Transfer-Encoding: chunked\r\n\r\nff\r\nunhea",
        b"unhealthy\n",
    ],
    ids=["cut", "another_503", "cut_body", "no_http"],
)
async def test_whatever_else_answers_fails_open(probe, answer):
    """At its limit the sidecar cuts the oldest connection; another program may hold the port."""

    async def serve(reader, writer):
        await reader.readline()
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await probe(server.sockets[0].getsockname()[1])


@pytest.mark.slow
async def test_an_answer_that_trickles_fails_open(probe):
    """A byte every 0.2 seconds, without an end, to http and https alike."""

    async def trickle(reader, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nX-Padding: ")
        with suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.2)

    answers = []
    server = await asyncio.start_server(
        lambda *streams: answers.append((asyncio.create_task(trickle(*streams)), streams[1])),
        "127.0.0.1",
        0,
    )
    async with server:
        succeeded = await probe(server.sockets[0].getsockname()[1])
        for task, writer in answers:
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*(task for task, _ in answers), return_exceptions=True)

    assert succeeded
