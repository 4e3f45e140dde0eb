"""A vLLM that serves TLS, and addresses that have the wrong scheme."""

import json
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from sidecar.errors import MeasurementError
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import RequestOptions
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import simulated

HINT = (
    "Does vLLM serve TLS there? If not, use http. If it does, is the CA of its certificate in"
    " --cacert or the setting vllm_ca_file, and the URL's host name in the certificate?"
)


@asynccontextmanager
async def with_tls(authority):
    """The https address of a simulated vLLM."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("vllm"))
    async with simulated() as vllm:
        # Another address of the same server.
        runner = vllm._runner
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"https://127.0.0.1:{runner.addresses[-1][1]}"


async def fault_at(url, **options):
    with pytest.raises(MeasurementError) as error:
        async with Client(url, RequestOptions(**options)) as client:
            await client.connect("a prompt")
    return str(error.value)


async def test_https_where_vllm_serves_none_is_named():
    """Also where the model need not be asked for."""
    async with simulated() as vllm:
        url = vllm.url.replace("http:", "https:")
        unknown = await fault_at(url)
        known = await fault_at(url, model="m")

    tls = f"TLS failed (ClientConnectorSSLError). {HINT}"
    assert unknown == f"{url}: cannot connect: {tls}"
    assert known == f"{url}: a request for m failed: {tls}"


async def test_a_certificate_of_an_unknown_authority_says_where_to_name_it(authority):
    async with with_tls(authority) as url:
        fault = await fault_at(url)

    reason = "certificate refused: unable to get local issuer certificate"
    tls = f"TLS failed ({reason}). {HINT}"
    assert fault == f"{url}: cannot connect: {tls}"


async def test_http_where_vllm_serves_tls_is_named(authority):
    async with with_tls(authority) as url:
        fault = await fault_at(url.replace("https:", "http:"))

    assert fault.endswith("is this vLLM's address, and http or https right?")


@pytest.mark.slow
async def test_requests_and_vllms_page_trust_the_authority_of_cacert(finished, authority):
    """Without the page the room in the KV cache would be unknown."""
    async with with_tls(authority) as url:
        code, out, err = await finished(
            *("sweep", "--url", url, "--cacert", str(authority.certificate), "--json"),
            *("--temperatures", "0", "--concurrency", "2", "--requests", "4", "--max-tokens", "4"),
        )

    assert code == 0, err
    (level,) = json.loads(out)["levels"]
    assert level["metrics"]["KV cache tokens"] > 0


@pytest.mark.parametrize("name", ["sweep", "baseline", "fidelity", "check"])
def test_each_command_that_asks_a_vllm_takes_certificates(name, capsys, tmp_path):
    """It says so, and refuses a file that has none."""
    with pytest.raises(SystemExit):
        command(name, "--help")
    assert "setting vllm_ca_file" in " ".join(capsys.readouterr().out.split())

    arguments = ("--against", "http://127.0.0.1:1") if name == "fidelity" else ()
    gone = tmp_path / "gone.pem"
    assert command(name, *arguments, "--cacert", str(gone)) == 2
    assert capsys.readouterr().err.startswith(f"{gone}: ")
