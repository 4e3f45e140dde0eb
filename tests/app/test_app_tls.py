"""The sidecar's ports with web configuration files.

The clients are those that use them in production.
"""

from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.app import running
from sidecar.http.connections import Refusal
from sidecar.settings import load_settings
from tests.app.app_tools import sidecar_settings
from tests.debian_servers import running_prometheus, scraping
from tests.waiting import START_SECONDS, until


@pytest.fixture
def guarded(vllm, socket_path, authority):
    """Runs a sidecar with such a web configuration.

    ``async with guarded(users=…) as variables``, of its settings.
    """

    @asynccontextmanager
    async def run(**web):
        path = authority.web_config(**web)
        variables = sidecar_settings(vllm.url, PLUGIN__SOCKET=socket_path, WEB_CONFIG_FILE=path)
        async with running(load_settings(None, variables)):
            yield variables

    return run


@pytest.fixture
def healthcheck(finished):
    """Waits until ``healthcheck`` passes.

    It gives an answer two seconds, and a busy machine may take longer.
    """
    return lambda variables: until(
        lambda: finished("healthcheck", **variables), (0, "", ""), seconds=START_SECONDS
    )


@pytest.mark.slow
@pytest.mark.servers
async def test_prometheus_scrapes_with_tls_client_certificate_and_password(
    guarded, http, authority, tmp_path
):
    """A real one; without any of them it is refused, and counted by the reason."""
    (tmp_path / "password").write_text("secret\n")
    certificate, key = authority.issue("client")
    required = {
        "client_ca_file": authority.certificate.name,
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    async with guarded(
        users={"prometheus": "secret"}, min_version="TLS13", **required
    ) as variables:
        config = scraping(variables["SPECDEC_LISTEN"])
        (scrape,) = config["scrape_configs"]
        tls = {
            "ca_file": str(authority.certificate),
            "cert_file": str(certificate),
            "key_file": str(key),
        }
        scrape |= {"scheme": "https", "tls_config": tls}
        config["scrape_configs"].append(scrape | {"job_name": "without"})
        scrape["basic_auth"] = {
            "username": "prometheus",
            "password_file": str(tmp_path / "password"),
        }
        async with running_prometheus(http, tmp_path, config) as prometheus:
            await prometheus.until('specdec_up{job="specdec"} == 1')
            await prometheus.until('up{job="without"} == 0')
            await prometheus.until('specdec_http_refused_total{reason="unauthorized"} > 0')
            refusals = await prometheus.instant("specdec_http_refused_total")
            assert {labels["reason"] for labels, _ in refusals} == {*map(str, Refusal)}


async def test_only_probes_need_no_password(guarded, healthcheck, authority):
    """The kubelet has none; everything that tells of the traffic asks for it."""
    connector = aiohttp.TCPConnector(ssl=authority.trusting())
    async with (
        guarded(users={"prometheus": "secret"}) as variables,
        aiohttp.ClientSession(
            f"https://{variables['SPECDEC_LISTEN']}", connector=connector
        ) as client,
    ):

        async def status(page):
            async with client.get(page) as answer:
                return answer.status

        await until(lambda: status("/-/ready"), 200)
        assert await status("/-/healthy") == 200
        assert {
            await status(page) for page in ("/", "/metrics", "/api/v1/status", "/runbooks", "/none")
        } == {401}
        await healthcheck(variables)


async def test_the_healthcheck_needs_no_client_certificate(
    guarded, healthcheck, finished, authority
):
    web = {
        "client_ca_file": authority.certificate.name,
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    async with guarded(**web) as variables:
        await healthcheck(variables)
    assert (await finished("healthcheck", **variables))[0] == 1


async def test_a_report_of_this_machines_sidecar_speaks_tls(guarded, finished):
    async with guarded() as variables:
        code, out, err = await finished("report", **variables)
    assert code == 0, err
    assert out.startswith("Does speculation pay?")
