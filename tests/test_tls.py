"""Which servers' certificates are accepted: the same ones on every Python, at every client."""

import json
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from sidecar.alerting.push import alert_session, post_alerts
from sidecar.engine.fetch import Fetcher
from sidecar.errors import MeasurementError, Unreachable
from sidecar.settings.groups import Alerting, Scrape
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import RequestOptions
from tests.http.certificates import Authority

MODELS = json.dumps({"data": [{"id": "m"}]})


@pytest.fixture(params=["3.13", "3.12"])
def _defaults_of_python(request, monkeypatch):
    """3.13 looks at extensions that others don't, and others want a chain to end at a root."""
    make = ssl.create_default_context

    def made(*arguments, **options):
        context = make(*arguments, **options)
        context.verify_flags &= ~(ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT)
        if request.param == "3.13":
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", made)


@pytest.fixture(params=["with_key_usage", "as_openssl_makes_it", "intermediate"])
def trusted(request, tmp_path):
    """An authority that others trust: a proper one, one without key usage, one below another."""
    if request.param == "with_key_usage":
        return Authority(tmp_path)
    if request.param == "as_openssl_makes_it":
        return Authority(tmp_path, extensions=())
    return Authority(tmp_path, "intermediate", below=Authority(tmp_path, "root"))


@asynccontextmanager
async def serving(authority, host="127.0.0.1"):
    """The https address of a server with a certificate of that authority."""

    async def answer(request):
        if request.method == "GET":
            return web.Response(text=MODELS)
        return web.Response(text="data: [DONE]\n\n", content_type="text/event-stream")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0, ssl_context=context).start()
        yield f"https://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def page(url, tls):
    fetcher = Fetcher(url, tls=tls)
    try:
        return await fetcher.get("/metrics")
    finally:
        await fetcher.close()


async def connected(url, tls):
    async with Client(url, RequestOptions(tls=tls)) as client:
        await client.connect("a prompt")
        return client.model


async def alerted(url):
    async with alert_session(Alerting(timeout=30)) as session:
        return await post_alerts(session, url)


@pytest.mark.usefixtures("_defaults_of_python")
async def test_what_an_authority_in_a_file_has_signed_is_accepted(trusted):
    """The scrape of vLLM and the commands' requests."""
    tls = Scrape(vllm_ca_file=trusted.certificate).tls()
    async with serving(trusted) as url:
        assert await page(url, tls) == MODELS.encode()
        assert await connected(url, tls) == "m"


@pytest.mark.usefixtures("_defaults_of_python")
async def test_so_is_what_one_of_the_systems_has_signed(trusted, monkeypatch):
    """SSL_CERT_FILE names the file with those."""
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.certificate))
    async with serving(trusted) as url:
        assert await page(url, Scrape().tls()) == MODELS.encode()
        assert await connected(url, Scrape().tls()) == "m"
        assert await alerted(url) == ("accepted", "")


async def test_a_certificate_of_a_stranger_is_refused_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger", "stranger")
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    tls = Scrape(vllm_ca_file=authority.certificate).tls()
    reason = "certificate refused: unable to get local issuer certificate"

    async with serving(stranger) as url:
        for trust in (tls, True):
            with pytest.raises(Unreachable, match=reason):
                await page(url, trust)
            with pytest.raises(MeasurementError, match=reason):
                await connected(url, trust)
        assert await alerted(url) == ("failed", reason)


async def test_a_certificate_of_another_name_is_refused_with_the_reason(authority):
    tls = Scrape(vllm_ca_file=authority.certificate).tls()
    async with serving(authority, "127.0.0.2") as url:
        with pytest.raises(Unreachable, match="certificate refused: IP address mismatch"):
            await page(url, tls)


async def test_without_verification_every_certificate_is_accepted(authority):
    tls = Scrape(vllm_tls_verify=False).tls()
    async with serving(authority) as url:
        assert await page(url, tls) == MODELS.encode()
        assert await connected(url, tls) == "m"
