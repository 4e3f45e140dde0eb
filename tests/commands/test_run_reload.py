"""``run`` applies new thresholds while it runs and refuses invalid ones, and SIGHUP does not end it."""

import asyncio
import signal
from contextlib import suppress

import pytest

from tests.commands.test_run import NOWHERE, log_line

THRESHOLD = 'specdec_threshold{name="acceptance_net_negative"}'
REFUSED = 'specdec_settings_reloads_total{outcome="refused"}'
APPLIED = 'specdec_settings_reloads_total{outcome="applied"}'


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
