"""``run`` serves until it is stopped, applies new thresholds while it runs and refuses invalid ones."""

import asyncio
import json
import os
import signal
from contextlib import suppress

import pytest

from sidecar.demo.server import SimulatedVllm
from tests.debian_servers import free_port

NOWHERE = "http://127.0.0.1:1"
THRESHOLD = 'specdec_threshold{name="acceptance_net_negative"}'
REFUSED = 'specdec_settings_reloads_total{outcome="refused"}'
APPLIED = 'specdec_settings_reloads_total{outcome="applied"}'


async def log_line(process, event):
    """The first line of the log with that event."""
    while line := await process.stderr.readline():
        entry = json.loads(line)
        if entry["event"] == event:
            return entry
    raise AssertionError(f"no log line {event!r}")


async def test_run_serves_until_terminated(program, finished, http):
    async with SimulatedVllm() as vllm:
        listen = f"127.0.0.1:{free_port()}"
        async with program("run", SPECDEC_VLLM_URL=vllm.url, SPECDEC_LISTEN=listen) as process:
            page = ""
            address = (await log_line(process, "sidecar started"))["address"]
            while "specdec_up 1.0" not in page.splitlines():
                async with http.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as response:
                    page = await response.text()
            while (await finished("healthcheck", SPECDEC_LISTEN=address))[0] != 0:
                pass  # it gives an answer two seconds
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        code, _, err = await finished("healthcheck", SPECDEC_LISTEN=address)
        assert code == 1
        assert err == f"no answer at {address}: ConnectionRefusedError; is the sidecar up, with this SPECDEC_LISTEN?\n"


async def test_terminated_while_it_starts_it_exits_as_later(program, tmp_path):
    """Here while it opens its settings, which nobody has written yet."""
    file = tmp_path / "settings"
    os.mkfifo(file)
    async with program("run", "--config", str(file)) as process:
        writer = await asyncio.to_thread(os.open, file, os.O_WRONLY)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        os.close(writer)


async def test_run_reports_an_address_in_use(program, finished):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        address = (await log_line(process, "sidecar started"))["address"]
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN=address)
        assert code == 1
        assert err.splitlines()[-1] == (
            f"cannot bind {address}: Address already in use; set another address, such as SPECDEC_LISTEN=127.0.0.1:9912"
        )
        assert "Traceback" not in err


async def test_a_socket_that_cannot_be_made_is_named_once_and_nothing_else_fails(program, http):
    asked = {"SPECDEC_LISTEN": "127.0.0.1:0", "SPECDEC_PLUGIN__SOCKET": "/proc/none/plugin.sock"}
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, **asked) as process:
        refused = await log_line(
            process,
            "cannot listen for the plug-in, so there is no split by temperature; "
            "set SPECDEC_PLUGIN__SOCKET, or stop the sidecar that uses this socket",
        )
        address = (await log_line(process, "sidecar started"))["address"]
        async with http.get(f"http://{address}/-/healthy") as response:
            assert response.status == 200
    assert refused["socket"] == "/proc/none/plugin.sock"


@pytest.fixture
def mounted(tmp_path):
    """A ConfigMap's volume as the kubelet writes it: a new directory, then one symbolic link is swapped."""
    versions = iter(range(100))

    def write(text):
        version = tmp_path / f"..{next(versions)}"
        version.mkdir()
        (version / "config.yaml").write_text(text)
        (tmp_path / "..new").symlink_to(version.name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    write("thresholds: {acceptance_net_negative: 0.5}\nlog: {level: warning}\nlimits: {series: 10000}")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    write.path = tmp_path / "config.yaml"
    return write


@pytest.fixture
def page(http, unused_tcp_port):
    """Waits until a line of the page at that port has a value."""

    async def until(series, value):
        lines = []
        while f"{series} {value}" not in lines:
            with suppress(OSError):  # it is still starting
                async with http.get(f"http://127.0.0.1:{unused_tcp_port}/metrics") as response:
                    lines = (await response.text()).splitlines()
            await asyncio.sleep(0.05)

    return until


@pytest.mark.slow
async def test_a_mounted_config_map_changes_thresholds_and_invalid_ones_are_refused(
    program, mounted, page, unused_tcp_port
):
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": f"127.0.0.1:{unused_tcp_port}"}
    async with program("run", "--config", str(mounted.path), **variables) as process:
        await page(THRESHOLD, "0.5")
        await page(REFUSED, "0.0")

        mounted("thresholds: {acceptance_net_negative: 0.4}\nlog: {level: info}\nlimits: {series: 5000}")
        await page(THRESHOLD, "0.4")
        await page(APPLIED, "1.0")
        reloaded = await log_line(process, "settings reloaded")
        assert reloaded["changed"] == {"thresholds.acceptance_net_negative": 0.4, "log.level": "info"}
        assert (await log_line(process, "changed settings need a restart"))["settings"] == ["limits.series"]

        mounted("thresholds: {acceptance_net_negative: 0.3, coverage: lots, zebra: 1}")
        await page(REFUSED, "1.0")
        problems = [(await log_line(process, "settings refused; keeping the old ones"))["problem"] for _ in "12"]
        reason = "input should be a valid number, unable to parse string as a number"
        assert problems == [
            f"thresholds.coverage (in {mounted.path})=lots: {reason}",
            f"thresholds.zebra (in {mounted.path}): unknown setting; remove it",
        ]
        await page(THRESHOLD, "0.4")

        mounted.path.parent.joinpath("..data").unlink()
        await page(REFUSED, "2.0")
        mounted("thresholds: {acceptance_net_negative: 0.45}")
        process.send_signal(signal.SIGHUP)
        await page(THRESHOLD, "0.45")


async def test_sighup_without_a_file_changes_nothing_and_ends_nothing(program):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        await log_line(process, "sidecar started")
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            assert "changed" not in await log_line(process, "settings reloaded")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
