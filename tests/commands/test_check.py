import asyncio
import json
import socket
import ssl
from contextlib import AsyncExitStack
from itertools import cycle

import pytest
from aiohttp import web

from sidecar.errors import TlsRefused
from specdec_tools.commands import check
from specdec_tools.demo.scheduler import SimulatorOptions
from tests.app.app_tools import running_sidecar
from tests.commands.commands_tools import command
from tests.debian_servers import free_port
from tests.demo.http_vllm import HttpVllm
from tests.requests.packets import HELLO, packet

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def checked(capsys, monkeypatch, socket_path):
    """Runs ``check``; gives its exit code and its lines.

    It listens for the plug-in for so many seconds.
    """

    async def run(url, listens=0.1, **environment):
        monkeypatch.setattr(check, "_LISTEN", listens)
        given = {
            "LISTEN": f"127.0.0.1:{free_port()}",
            "SCRAPE_TIMEOUT": "60s",
            "ALERTING__TIMEOUT": "60s",
        }
        given |= {"VLLM_URL": url, "PLUGIN__SOCKET": str(socket_path)} | environment
        code = await asyncio.to_thread(command, "check", **given)
        out, err = capsys.readouterr()
        assert err == ""
        # without a sidecar's log, if one runs
        return code, [line for line in out.splitlines() if not line.startswith("20")]

    return run


async def test_check_describes_a_vllm_and_says_how_to_load_the_plug_in(checked):
    """Line for line, before anything has been drafted."""
    async with HttpVllm() as vllm:
        code, lines = await checked(vllm.url)
        assert lines[2] == f"vLLM: {vllm.url}"
    assert code == 0
    assert lines[:2] + lines[3:-1] == [
        "settings: valid (environment variables, no file)",
        "",
        "  model demo, engine 0",
        "    speculative decoding: on, nothing drafted yet",
        "    KV cache: 65,536 tokens",
        "",
    ]
    assert lines[-1].startswith("plug-in: No plug-in has connected yet, so there is no split")
    assert (
        "`specdec-sidecar plugin DIR` writes it, and vLLM loads it once it is restarted with"
        " `PYTHONPATH=DIR`" in lines[-1]
    )
    assert lines[-1].endswith("(listened for 0 s)")


@pytest.mark.parametrize(
    ("hello", "code", "text"),
    [
        (HELLO | {"model": "demo"}, 0, "plug-in: The plug-in "),
        (
            HELLO | {"model": "demo", "state": "refused", "reason": "add_request differs"},
            1,
            "add_request differs.",
        ),
        ({"v": 9}, 1, "message format 9"),
    ],
)
async def test_check_listens_for_the_plug_in(socket_path, checked, *, hello, code, text):
    """One that refuses, or that it cannot read, fails the check."""
    async with HttpVllm() as vllm:
        # A busy machine may take longer than usual.
        checking = asyncio.create_task(checked(vllm.url, listens=120.0))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as plugin:
            while plugin.connect_ex(str(socket_path)):
                await asyncio.sleep(0.01)
            plugin.send(packet(**hello) if "v" in hello else packet(hello=hello))
            returned, lines = await checking
    assert (returned, text in lines[-1]) == (code, True), lines


@pytest.mark.parametrize("beside_a_sidecar", [False, True])
async def test_a_socket_that_cannot_be_listened_at_is_a_failure(
    checked, socket_path, beside_a_sidecar
):
    """Also where a sidecar runs that cannot listen there either."""
    socket_path.touch()
    listen = f"127.0.0.1:{free_port()}"
    async with HttpVllm() as vllm, AsyncExitStack() as stack:
        if beside_a_sidecar:
            await stack.enter_async_context(running_sidecar(socket_path, vllm.url, listen=listen))
        code, lines = await checked(vllm.url, LISTEN=listen)
    assert (code, "cannot listen for the plug-in (Address already in use)" in lines[-1]) == (
        1,
        True,
    )


async def test_a_socket_at_which_another_process_listens_is_no_failure(checked, socket_path):
    """It is the running sidecar's, whose address this command was not told."""
    elsewhere = f"127.0.0.1:{free_port()}"
    async with HttpVllm() as vllm, running_sidecar(socket_path, vllm.url, listen=elsewhere):
        code, lines = await checked(vllm.url, LISTEN=f"127.0.0.1:{free_port()}")

    assert code == 0
    assert lines[-1].startswith(
        f"plug-in: not heard, because another process listens at {socket_path}."
    )
    assert "set SPECDEC_LISTEN as it does" in lines[-1]


async def test_beside_a_running_sidecar_it_says_what_that_one_says_and_of_which_vllm(
    checked, socket_path
):
    """The socket is that sidecar's, so it is asked; its password for vLLM is not shown."""
    listen = f"127.0.0.1:{free_port()}"
    async with HttpVllm() as vllm:
        with_password, watched = (
            vllm.url.replace("//", f"//{user}@") for user in ("user:secret", "***")
        )
        async with running_sidecar(socket_path, with_password, listen=listen):
            code, lines = await checked(vllm.url, LISTEN=listen)
    assert code == 0
    assert lines[-1].startswith("plug-in: No plug-in has connected")
    assert lines[-1].endswith(f" (from the sidecar at http://{listen}, which watches {watched})")


async def test_check_lists_what_the_page_and_a_baseline_of_other_models_cannot_tell(checked):
    """A baseline that also has this model is not complained of."""
    async with HttpVllm(SimulatorOptions(num_speculative_tokens=0)) as vllm:
        code, lines = await checked(vllm.url, BASELINE='{"n": {}, "o": {}}')
        _, own = await checked(vllm.url, BASELINE='{"n": {}, "demo": {}}')
    assert code == 0
    assert (
        "    baseline: of other models (n, o), so this model has no speedup and no prices" in lines
    )
    assert not any("baseline" in line for line in own)
    assert any(
        line.startswith("    limitation (no_speculation): vLLM exports no ") for line in lines
    )


async def test_check_does_not_know_whether_a_vllm_behind_the_rust_frontend_speculates(checked):
    async with HttpVllm(SimulatorOptions(num_speculative_tokens=0)) as vllm:
        vllm.is_rust = True
        code, lines = await checked(vllm.url)
    assert code == 0
    unknown = "not known: vLLM's Rust frontend has counted no draft"
    assert f"    speculative decoding: {unknown}" in lines
    assert any(line.startswith("    limitation (rust_frontend): vLLM's Rust") for line in lines)


async def test_check_gives_no_rate_of_counters_that_are_wrong(checked, served, recorded):
    async def wrong(_):
        body = recorded("vllm-0.33.0.prom").replace(b"} 866.0\n", b"} 1800.0\n")
        return web.Response(body=body)

    async with served(wrong) as url:
        _, lines = await checked(url)

    (line,) = [line for line in lines if "speculative decoding" in line]
    assert line.endswith("draft positions, but this engine's counters are wrong")


async def test_check_says_why_there_is_no_page_and_what_to_change_in_the_url(checked):
    """The usual mistakes are named: a path of the API, TLS, another server, none at all."""
    async with HttpVllm() as vllm:
        _, under_v1 = await checked(f"{vllm.url}/v1")
        _, at_endpoint = await checked(f"{vllm.url}/v1/chat/completions")
        _, with_tls = await checked(vllm.url.replace("http:", "https:"))
        vllm.fault = "foreign"
        code, foreign = await checked(vllm.url)
    _, gone = await checked(NOWHERE)
    assert code == 1
    assert any(line.startswith("  no usable metrics (no_vllm_metrics): ") for line in foreign)
    for lines in (under_v1, at_endpoint):
        assert any("end the URL before /v1" in line for line in lines)
    assert any("Does vLLM serve TLS there" in line for line in with_tls)
    assert any("Is vLLM running" in line for line in gone)


REJECTED = (
    "rejected (status 404): alerting.alertmanagers takes base URLs, such as"
    " http://alertmanager:9093"
)
DOWN = (
    "failed (ClientConnectorError): is Alertmanager up and reachable from here? With https, the CA"
    " of its certificate must be one of the system's, or in the file that SSL_CERT_FILE names"
)


async def test_check_asks_each_alertmanager_whether_it_would_take_alerts(checked, served):
    """By an empty list, which alerts nobody."""
    posts = []

    async def alertmanager(request):
        posts.append(await request.json())
        return web.Response(status=200 if request.path == "/api/v2/alerts" else 404)

    async with HttpVllm() as vllm, served(alertmanager) as url:
        urls = [url, f"{url}/wrong", f"http://127.0.0.1:{free_port()}"]
        code, lines = await checked(vllm.url, ALERTING__ALERTMANAGERS=json.dumps(urls))
    assert (code, posts) == (1, [[], []])
    answers = zip(urls, ("accepts alerts", REJECTED, DOWN), strict=True)
    assert (
        lines[-8:]
        == [line for url, text in answers for line in ("", f"Alertmanager: {url}", f"  {text}")][1:]
    )


async def test_check_says_what_an_alertmanager_behind_tenants_asks_for(checked, served):
    """Mimir's: without a tenant it answers 401; what was sent to log in is not shown."""

    async def mimir(request):
        tenant = request.headers.get("X-Scope-OrgID")
        if tenant != "team":
            return web.Response(status=401, text=f"no org id: {tenant or ''}\n")
        return web.Response()

    async with HttpVllm() as vllm, served(mimir) as url:
        urls = {"ALERTING__ALERTMANAGERS": json.dumps([f"{url}/alertmanager"])}
        code, lines = await checked(vllm.url, **urls)
        wrong = {"ALERTING__HEADERS": '{"X-Scope-OrgID": "hidden"}'}
        _, refused = await checked(vllm.url, **urls, **wrong)
        right = {"ALERTING__HEADERS": '{"X-Scope-OrgID": "team"}'}
        accepted, _ = await checked(vllm.url, **urls, **right)

    assert (code, accepted) == (1, 0)
    assert lines[-1].startswith("  rejected (status 401: no org id:): it asks who sends: set")
    assert refused[-1].startswith("  rejected (status 401: no org id: ***): it asks who sends")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_check_names_the_client_certificate_that_vllm_asks_for(
    checked, recorded, authority, version
):
    """vLLM with --ssl-cert-reqs 2: it was "something cuts off responses"."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("vllm"))
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = version

    async def handler(_):
        return web.Response(body=recorded("vllm-0.33.0.prom"))

    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        ca = {"VLLM_CA_FILE": str(authority.certificate)}
        code, without = await checked(url, **ca)

        certificate, key = authority.issue("client")
        own = {"VLLM_CERT_FILE": str(certificate), "VLLM_KEY_FILE": str(key)}
        accepted, lines = await checked(url, **ca, **own)
    finally:
        await runner.cleanup()

    assert (code, accepted) == (1, 0), lines
    assert any(line.startswith("  no usable metrics (tls_refused): ") for line in without)
    assert any("--ssl-cert-reqs 2" in line for line in without)
    assert any(line.startswith("  model meta-llama/") for line in lines)


@pytest.mark.parametrize("cause", [ssl.SSLEOFError(), ConnectionResetError()])
def test_what_is_said_of_a_refusal_is_not_of_the_ca(cause):
    refused = TlsRefused("the server refused TLS")
    refused.__cause__ = cause
    assert check._remedy(refused, "https://vllm") == TlsRefused.remedy


async def test_url_takes_the_place_of_the_settings_and_a_sidecars_password_comes_from_a_file(
    capsys, authority, socket_path, tmp_path
):
    (tmp_path / "user").write_text("me:secret\n")
    web_config = authority.web_config(tls=False, users={"me": "secret"})
    listen = f"127.0.0.1:{free_port()}"
    settings = {"LISTEN": listen, "VLLM_URL": NOWHERE, "SCRAPE_TIMEOUT": "60s"}
    async with HttpVllm() as vllm:
        url = vllm.url
        own = {"listen": listen, "web_config_file": web_config}
        async with running_sidecar(socket_path, url, **own):
            arguments = ("check", "--url", url, "--user-file", str(tmp_path / "user"))
            code = await asyncio.to_thread(command, *arguments, **settings)
        lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert f"vLLM: {url}" in lines
    [plugin] = [line for line in lines if line.startswith("plug-in: ")]
    assert plugin.endswith(f"(from the sidecar at http://***@{listen}, which watches {url})")


async def test_check_creates_nothing_on_disk(checked, tmp_path):
    """Not even the directory of the socket: it only says that it is missing."""
    (tmp_path / "known").mkdir()
    async with HttpVllm() as vllm:
        _, missing = await checked(vllm.url, PLUGIN__SOCKET=str(tmp_path / "new" / "p.sock"))
        code, _ = await checked(vllm.url, PLUGIN__SOCKET=str(tmp_path / "known" / "p.sock"))

    assert code == 0
    assert f"because {tmp_path / 'new'} does not exist" in missing[-1]
    assert [path.name for path in tmp_path.rglob("*")] == ["known"]


@pytest.mark.parametrize("starts", [("1.7e9", "1.8e9"), ("", "")])
async def test_check_sees_several_servers_behind_one_address(checked, served, starts):
    """With and without a start time on their pages."""
    turns = cycle(
        f"# TYPE vllm:x counter\n{f'process_start_time_seconds {start}' if start else ''}\n"
        f'vllm:generation_tokens_total{{model_name="m"}} {tokens}\n'
        f'vllm:prompt_tokens_total{{model_name="m"}} {tokens}\n'
        for start, tokens in zip(starts, (5000, 900), strict=True)
    )

    async def handler(_):
        return web.Response(text=next(turns))

    async with served(handler) as url:
        code, lines = await checked(url)

    assert code == 1
    assert any("several vLLM servers answer at this address" in line for line in lines)
