import asyncio
import json
import signal

import pytest
import yaml
from aiohttp import web

from sidecar import __version__
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings
from tests.debian_servers import free_port

NOWHERE = "http://127.0.0.1:1"


async def log_line(process, event):
    """The first line of the log with that event."""
    while line := await process.stderr.readline():
        found = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"no log line {event!r}")


async def test_version(finished):
    assert await finished("--version") == (0, f"specdec-sidecar {__version__}\n", "")


async def test_no_command_prints_usage(finished):
    code, _, err = await finished()
    assert code == 2
    assert "usage: specdec-sidecar" in err


async def test_bad_settings_are_refused_before_anything_starts(finished):
    code, out, err = await finished(
        "run", SPECDEC_SCRAPE_INTERVAL="fast", SPECDEC_LISTN="x", SPECDEC_VLLM_URL="ftp://x"
    )
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "SPECDEC_LISTN: unknown setting; did you mean SPECDEC_LISTEN?",
        "SPECDEC_VLLM_URL=ftp://x: expected http or https URL, such as http://127.0.0.1:8000",
        "SPECDEC_SCRAPE_INTERVAL=fast: expected duration, 100ms to 5m",
    ]


async def test_run_serves_until_terminated(program, finished, http):
    async with SimulatedVllm() as vllm:
        async with program("run", SPECDEC_VLLM_URL=vllm.url, SPECDEC_LISTEN="127.0.0.1:0") as process:
            address = (await log_line(process, "specdec-sidecar runs"))["listen"]
            await log_line(process, "engine found")
            async with http.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as response:
                assert "specdec_up 1.0" in (await response.text()).splitlines()
            assert (await finished("healthcheck", SPECDEC_LISTEN=address))[0] == 0
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        code, _, err = await finished("healthcheck", SPECDEC_LISTEN=address)
        assert code == 1
        assert err == f"no answer at {address}: ConnectionRefusedError; is the sidecar up, with this SPECDEC_LISTEN?\n"


async def test_run_says_when_its_address_is_taken(program, finished):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        address = (await log_line(process, "specdec-sidecar runs"))["listen"]
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN=address)
        assert code == 1
        said = json.loads(err.splitlines()[-1])
        assert (said["event"], said["listen"], said["remedy"]) == ("can't listen", address, "set SPECDEC_LISTEN")
        assert "Traceback" not in err


@pytest.mark.parametrize("source", ["proxy", "traces"])
async def test_run_names_the_setting_of_a_source_whose_address_is_taken(program, finished, source):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        taken = (await log_line(process, "specdec-sidecar runs"))["listen"]
        variable = f"SPECDEC_{source.upper()}__LISTEN"
        asked = {"SPECDEC_REQUESTS__SOURCE": source, variable: taken, "SPECDEC_LISTEN": "127.0.0.1:0"}
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, **asked)
    said = json.loads(err.splitlines()[-1])
    assert (code, said["listen"], said["remedy"]) == (1, taken, f"set {variable}")


async def test_run_names_the_socket_that_can_not_be_made(finished):
    asked = {"SPECDEC_REQUESTS__SOURCE": "middleware", "SPECDEC_MIDDLEWARE__SOCKET": "/proc/none/events.sock"}
    code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0", **asked)
    said = json.loads(err.splitlines()[-1])
    assert (code, said["listen"]) == (1, "/proc/none/events.sock")
    assert said["remedy"] == "set SPECDEC_MIDDLEWARE__SOCKET"


async def test_a_lasting_fault_is_logged_once(program):
    async with program(
        "run",
        SPECDEC_VLLM_URL=NOWHERE,
        SPECDEC_LISTEN="127.0.0.1:0",
        SPECDEC_SCRAPE_INTERVAL="0.1s",
        SPECDEC_SCRAPE_BACKOFF_MAX="0.1s",
    ) as process:
        await log_line(process, "specdec-sidecar runs")
        await log_line(process, "vLLM's page can't be had")
        with pytest.raises(TimeoutError):  # dozens of polls fail meanwhile; none of them says anything
            async with asyncio.timeout(2):
                await process.stderr.readline()


async def test_check_describes_a_vllm(finished):
    async with SimulatedVllm() as vllm:
        code, out, err = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "settings: sound (no file and the environment)",
        "request source: none; acceptance is not split by temperature",
        "",
        f"vllm: {vllm_address(out)}",
        "  vLLM: V1 engine, 0.30 or later",
        "  model demo, engine 0",
        "    speculative decoding: on; nothing drafted yet",
        "    KV cache: 65,536 tokens",
    ]


def vllm_address(out):
    return out.splitlines()[3].removeprefix("vllm: ")


async def test_check_says_what_can_not_be_known(finished):
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=0)) as vllm:
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert code == 0
    assert "    can't know (no_speculation): No spec_decode counters" in out


@pytest.mark.parametrize(
    ("fault", "reason"), [("error_500", "status"), ("html", "not_an_exposition"), ("foreign", "no_vllm_metrics")]
)
async def test_check_says_why_there_is_no_page(finished, fault, reason):
    async with SimulatedVllm() as vllm:
        vllm.faults.set(fault)
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert code == 1
    assert f"  no usable page ({reason}): " in out


async def test_check_of_nothing(finished):
    code, out, _ = await finished("check", SPECDEC_VLLM_URL=NOWHERE)
    assert code == 1
    assert "  no usable page (unreachable): " in out
    assert "Is vLLM up" in out


async def test_check_says_what_to_change_in_the_url(finished):
    async with SimulatedVllm() as vllm:
        _, under_v1, _ = await finished("check", SPECDEC_VLLM_URL=f"{vllm.url}/v1")
        _, with_tls, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url.replace("http:", "https:"))
    assert "write the URL without it" in under_v1
    assert "does vLLM serve TLS there" in with_tls


@pytest.mark.parametrize("path", ["", "/wrong"])
async def test_check_asks_alertmanager_whether_it_would_take_alerts(finished, served, path):
    posts = []

    async def alertmanager(request):
        posts.append(await request.json())
        return web.Response(status=200 if request.path == "/api/v2/alerts" else 404)

    async with SimulatedVllm() as vllm, served(alertmanager) as url:
        urls = json.dumps([url + path])
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url, SPECDEC_ALERTING__ALERTMANAGERS=urls)
    assert posts == [[]]
    assert f"Alertmanager: {url}{path}\n" in out
    assert (code, out.splitlines()[-1]) == (
        (1, "  rejected (status 404): alerting.alertmanagers takes base URLs, such as http://alertmanager:9093")
        if path
        else (0, "  takes alerts")
    )


async def test_check_does_not_blame_the_url_where_alertmanager_is_not_there(finished):
    async with SimulatedVllm() as vllm:
        urls = json.dumps([f"http://127.0.0.1:{free_port()}"])
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url, SPECDEC_ALERTING__ALERTMANAGERS=urls)
    assert code == 1
    assert out.splitlines()[-1] == (
        "  failed (ClientConnectorError): is Alertmanager up there, and reachable from here?"
    )


async def test_baseline_writes_what_the_settings_read(finished, tmp_path):
    file = tmp_path / "baseline.yaml"
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        traffic = Traffic(TrafficOptions(vllm.url, phases=(Phase(30, MIXED),)))
        sending = asyncio.create_task(traffic.run())
        code, out, err = await finished("baseline", "--duration", "3s", "--out", str(file), SPECDEC_VLLM_URL=vllm.url)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert (code, out) == (0, ""), err
    phases = yaml.safe_load(file.read_text())["baseline"]["demo"]
    assert set(phases) == {"ttft", "itl", "tpot", "e2e", "queue"}
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).baselines["demo"]
    assert loaded["tpot"][0.99] == phases["tpot"]["p99"] > 0


async def test_baseline_of_an_idle_vllm_writes_nothing(finished, tmp_path):
    async with SimulatedVllm() as vllm:
        code, out, err = await finished("baseline", "--duration", "1s", SPECDEC_VLLM_URL=vllm.url)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "no request ended while watching, so there is nothing to write; watch for longer, or send traffic"
    )


async def test_baseline_of_a_vllm_that_is_down_says_so_once(finished):
    code, out, err = await finished("baseline", "--duration", "2s", SPECDEC_VLLM_URL=NOWHERE)
    assert (code, out) == (1, "")
    _, fault, end = err.splitlines()
    assert fault.startswith("no page (unreachable): ")
    assert end.startswith(f"vLLM's page could not be read at {NOWHERE}, ")


async def test_a_baseline_of_two_servers_with_one_model_keeps_them_apart(finished, tmp_path):
    """What one of them served before the watch is nobody's growth."""
    config = tmp_path / "two.yaml"
    async with SimulatedVllm(SimulatorOptions(speed=20)) as busy, SimulatedVllm() as idle:
        await Traffic(TrafficOptions(busy.url, phases=(Phase(30, MIXED),), max_requests=10)).run()
        urls = {"busy": busy.url, "idle": idle.url}
        targets = [{"name": name, "vllm_url": url} for name, url in urls.items()]
        config.write_text(yaml.safe_dump({"targets": targets, "scrape_interval": "0.2s"}))
        code, out, err = await finished("baseline", "--duration", "1s", "--config", str(config))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("no request ended while watching, so there is nothing to write")


async def test_a_bad_duration_is_refused(finished):
    code, _, err = await finished("baseline", "--duration", "soon")
    assert code == 2
    assert err.startswith("--duration=soon: expected duration, ")


async def test_demo_shows_where_to_look_and_ends_by_itself(finished):
    code, out, err = await finished("demo", "--duration", "5s", SPECDEC_LISTEN="127.0.0.1:0")
    assert code == 0, err
    assert "  look        http://127.0.0.1:" in out
    completed, failed = [int(word) for word in out.splitlines()[-1].split() if word.isdigit()]
    assert completed > 0
    assert failed == 0


async def test_a_baseline_that_can_not_be_written_is_told_at_once_or_printed(finished, tmp_path):
    nowhere = tmp_path / "none" / "baseline.yaml"
    code, out, err = await finished("baseline", "--duration", "10m", "--out", str(nowhere), SPECDEC_VLLM_URL=NOWHERE)
    assert (code, out) == (2, "")
    assert err == f"--out={nowhere}: there is no such folder\n"
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        traffic = Traffic(TrafficOptions(vllm.url, phases=(Phase(30, MIXED),)))
        sending = asyncio.create_task(traffic.run())
        code, out, err = await finished(
            "baseline", "--duration", "3s", "--out", str(tmp_path), SPECDEC_VLLM_URL=vllm.url
        )
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert code == 2
    assert f"--out={tmp_path}: " in err
    assert yaml.safe_load(out)["baseline"]["demo"]["tpot"]["p50"] > 0
