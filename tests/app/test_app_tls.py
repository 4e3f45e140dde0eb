"""The sidecar's ports with web configuration files, used by the clients that use them in production."""

import asyncio
import subprocess
import sys

import aiohttp
import pytest

from sidecar.app import running
from sidecar.settings import load_settings
from tests.debian_servers import free_port, running_prometheus, scraping


def environment(vllm, **settings):
    base = {"vllm_url": vllm.url, "listen": "127.0.0.1:0", "scrape_interval": "100ms", "plugin__socket": "/proc/none"}
    return {f"SPECDEC_{name.upper()}": str(value) for name, value in (base | settings).items()}


async def finished(command, variables):
    """A command's exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", command), env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def healthy(variables):
    """Waits until ``healthcheck`` says so, which gives an answer two seconds; a busy machine may take longer."""
    while (await finished("healthcheck", variables))[0] != 0:
        pass


@pytest.mark.servers
async def test_prometheus_scrapes_with_tls_client_certificate_and_password(vllm, http, authority, tmp_path):
    path = authority.web_config(
        users={"prometheus": "secret"},
        client_ca_file=authority.certificate.name,
        client_auth_type="RequireAndVerifyClientCert",
        min_version="TLS13",
    )
    (tmp_path / "password").write_text("secret\n")
    certificate, key = authority.issue("client")
    async with running(load_settings(None, environment(vllm, web_config_file=path))) as address:
        config = scraping(f"127.0.0.1:{address.port}")
        (scrape,) = config["scrape_configs"]
        tls = {"ca_file": str(authority.certificate), "cert_file": str(certificate), "key_file": str(key)}
        scrape |= {
            "scheme": "https",
            "tls_config": tls,
            "basic_auth": {"username": "prometheus", "password_file": str(tmp_path / "password")},
        }
        without = {name: value for name, value in scrape.items() if name != "basic_auth"} | {"job_name": "without"}
        config["scrape_configs"].append(without)
        async with running_prometheus(http, tmp_path, config) as prometheus:
            while not await prometheus.instant('specdec_up{job="specdec"} == 1'):
                await asyncio.sleep(0.1)
            while not await prometheus.instant('up{job="without"} == 0'):
                await asyncio.sleep(0.1)
            while not await prometheus.instant('specdec_http_refused_total{reason="unauthorized"} > 0'):
                await asyncio.sleep(0.1)


async def test_probes_need_no_password_and_the_healthcheck_speaks_tls(vllm, authority):
    path = authority.web_config(users={"prometheus": "secret"})
    port = free_port()
    variables = environment(vllm, web_config_file=path, listen=f"127.0.0.1:{port}")
    connector = aiohttp.TCPConnector(ssl=authority.trusting())
    async with running(load_settings(None, variables)), aiohttp.ClientSession(connector=connector) as client:

        async def status(page):
            async with client.get(f"https://127.0.0.1:{port}{page}") as answer:
                return answer.status

        while await status("/-/ready") != 200:
            await asyncio.sleep(0.05)
        assert await status("/-/healthy") == 200
        assert {await status(page) for page in ("/", "/metrics", "/api/v1/status", "/runbooks", "/none")} == {401}
        await healthy(variables)


async def test_the_healthcheck_needs_no_client_certificate(vllm, authority):
    path = authority.web_config(
        client_ca_file=authority.certificate.name, client_auth_type="RequireAndVerifyClientCert"
    )
    port = free_port()
    variables = environment(vllm, web_config_file=path, listen=f"127.0.0.1:{port}")
    async with running(load_settings(None, variables)):
        await healthy(variables)
    assert (await finished("healthcheck", variables))[0] == 1


async def test_a_report_of_this_machines_sidecar_speaks_tls(vllm, authority):
    port = free_port()
    variables = environment(vllm, web_config_file=authority.web_config(), listen=f"127.0.0.1:{port}")
    async with running(load_settings(None, variables)):
        code, printed = await finished("report", variables)
    assert code == 0, printed
    assert printed.startswith("Does speculation pay?")
