"""``run`` serves until it is stopped, and reloads its settings."""

import asyncio
import json
import os
import signal
import socket

import pytest

from specdec_tools.demo.server import SimulatedVllm
from tests.debian_servers import free_port
from tests.page import Page
from tests.waiting import START_SECONDS, until

NOWHERE = "http://127.0.0.1:1"


async def log_line(process, event):
    """The first line of the log with that event."""
    while line := await process.stderr.readline():
        entry = json.loads(line)
        if entry["event"] == event:
            return entry
    raise AssertionError(f"no log line {event!r}")


async def test_run_serves_until_terminated(program, finished):
    async with SimulatedVllm() as vllm:
        listen = f"127.0.0.1:{free_port()}"
        async with program("run", SPECDEC_VLLM_URL=vllm.url, SPECDEC_LISTEN=listen) as process:
            address = (await log_line(process, "sidecar started"))["address"]
            await Page(f"http://{address}").until(lambda samples: samples.up, seconds=START_SECONDS)
            await until(
                lambda: finished("healthcheck", SPECDEC_LISTEN=address),
                (0, "", ""),
                seconds=START_SECONDS,
            )
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        code, _, err = await finished("healthcheck", SPECDEC_LISTEN=address)
        assert code == 1
        assert (
            err == f"no answer at {address}: ConnectionRefusedError; is the sidecar up, with this"
            " SPECDEC_LISTEN?\n"
        )


async def test_terminated_while_it_starts_it_exits_as_later(program, tmp_path):
    """Here while it opens its settings, which nobody has written yet."""
    file = tmp_path / "settings"
    os.mkfifo(file)
    async with program("run", "--config", str(file)) as process:
        writer = await asyncio.to_thread(os.open, file, os.O_WRONLY)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        os.close(writer)


@pytest.mark.slow
async def test_a_changed_settings_file_is_applied_without_a_signal(program, finished, tmp_path):
    """Here it is noticed, within ten seconds.

    ``tests/settings/test_reload.py`` says what is applied.
    """
    file, listen = tmp_path / "config.yaml", f"127.0.0.1:{free_port()}"
    file.write_text("log: {level: warning}")
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": listen}
    async with program("run", "--config", str(file), **variables) as process:
        await until(
            lambda: finished("healthcheck", SPECDEC_LISTEN=listen),
            (0, "", ""),
            seconds=START_SECONDS,
        )
        file.write_text("log: {level: info}")
        assert (await log_line(process, "settings reloaded"))["changed"] == {"log.level": "info"}


async def test_sighup_without_a_file_changes_nothing_and_ends_nothing(program):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        await log_line(process, "sidecar started")
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            assert "changed" not in await log_line(process, "settings reloaded")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_bad_setting_does_not_stop_it_where_vllm_waits_for_it(program, tmp_path):
    """It logs the problem, exports it and shows it, until a reload finds none."""
    file, listen = tmp_path / "config.yaml", f"127.0.0.1:{free_port()}"
    file.write_text("thresholds: {coverage: lots, slowdown: 1.3}")
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": listen, "SPECDEC_CONFIG": str(file)}
    async with program("run", "--ignore-invalid-settings", **variables) as process:
        problem = (await log_line(process, "setting is invalid; its default is in force"))[
            "problem"
        ]
        await log_line(process, "sidecar started")
        page = Page(f"http://{listen}")
        samples = await page.until(lambda samples: samples.sum("specdec_settings_invalid"))
        shown = (await page.get("/")).body.decode()
        status = await page.status()

        file.write_text("thresholds: {coverage: 0.9, slowdown: 1.3}")
        process.send_signal(signal.SIGHUP)
        await page.until(lambda samples: samples.sum("specdec_settings_invalid"), 0)

    assert problem.startswith(f"thresholds.coverage (in {file})=lots: input should be a valid")
    assert samples.value("specdec_threshold", name="slowdown") == 1.3
    assert samples.value("specdec_threshold", name="coverage") == 0.98
    assert "1 setting invalid" in shown
    assert "thresholds.coverage (in " in shown
    assert status["own"]["invalid_settings"] == [problem]


async def test_a_refused_reload_is_exported_as_long_as_the_file_is_wrong(program, tmp_path):
    file, listen = tmp_path / "config.yaml", f"127.0.0.1:{free_port()}"
    file.write_text("log: {level: info}")
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": listen}
    async with program("run", "--config", str(file), **variables) as process:
        await log_line(process, "sidecar started")
        file.write_text("log: {level: loud}\nlimits: {series: 1}")
        process.send_signal(signal.SIGHUP)
        await Page(f"http://{listen}").until(
            lambda samples: samples.sum("specdec_settings_invalid"), 2
        )


async def test_an_invalid_web_configuration_locks_the_pages_but_not_the_probes(
    program, finished, tmp_path
):
    listen = f"127.0.0.1:{free_port()}"
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": listen}
    variables["SPECDEC_WEB_CONFIG_FILE"] = str(tmp_path / "gone.yaml")
    async with program("run", "--ignore-invalid-settings", **variables) as process:
        await log_line(
            process, "own pages are locked, except for probes, until web_config_file is valid"
        )
        await log_line(process, "sidecar started")
        statuses = [
            (await Page(f"http://{listen}").get(path)).status
            for path in ("/metrics", "/", "/api/v1/status", "/-/healthy")
        ]
        healthy = await finished("healthcheck", **variables)

    assert statuses == [401, 401, 401, 200]
    assert healthy == (0, "", "")


async def test_url_takes_the_place_of_the_settings(program):
    variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": "127.0.0.1:0"}
    async with program("run", "--url", "http://127.0.0.1:2/metrics", **variables) as process:
        started = await log_line(process, "sidecar started")

        process.send_signal(signal.SIGHUP)
        reloaded = await log_line(process, "settings reloaded")

    assert started["vllm_url"] == "http://127.0.0.1:2"
    assert "changed" not in reloaded


@pytest.mark.slow
async def test_where_vllm_waits_for_it_it_waits_for_a_port_that_is_taken(program):
    """As of another Pod of the node, with ``hostNetwork``."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        variables = {"SPECDEC_VLLM_URL": NOWHERE, "SPECDEC_LISTEN": listen}
        async with program("run", **variables) as strict:
            assert await strict.wait() == 1

        async with program("run", "--ignore-invalid-settings", **variables) as process:
            problem = (await log_line(process, "cannot listen; trying again"))["problem"]
            other.close()
            await log_line(process, "sidecar started")

            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0

    assert problem.startswith(f"cannot bind {listen}: Address already in use")
