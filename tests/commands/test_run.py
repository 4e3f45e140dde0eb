"""``run`` serves until it is stopped, and reloads its settings."""

import asyncio
import json
import os
import signal

import pytest

from sidecar.demo.server import SimulatedVllm
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
