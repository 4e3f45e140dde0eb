"""The README's chain, by its own commands: a losing demo, Prometheus, Alertmanager, and the alert."""

import asyncio
import os
import re
import shutil
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.alerts.alert_tools import RULES
from tests.alerts.chain_tools import INTERVAL, PATIENCE, faster
from tests.debian_servers import free_port

ROOT = RULES.parent
LISTENS = ("prometheus --config", "prometheus-alertmanager --config")  # commands that take --web.listen-address


def commands():
    """The first block of commands in the section."""
    section = (RULES / "README.md").read_text().partition("## See a page")[2]
    block = re.search(r"(?:^    .+\n)+", section, re.MULTILINE)
    return [line.strip() for line in block[0].splitlines()]


def shortened(folder):
    """The repository's files that the commands name, at the fast pace."""
    shutil.copytree(RULES, folder / "alerts")
    for name in ("recording.yaml", "alerts.yaml"):
        path = folder / "alerts" / name
        path.write_text(faster(path.read_text()))
    (folder / "deploy" / "compose").mkdir(parents=True)
    text = (ROOT / "deploy" / "compose" / "prometheus.yaml").read_text()
    text = re.sub(r"(scrape_interval|evaluation_interval): \w+", rf"\1: {INTERVAL}", text)
    (folder / "deploy" / "compose" / "prometheus.yaml").write_text(text)


@asynccontextmanager
async def started(command, **environment):
    process = await asyncio.create_subprocess_shell(
        command,
        env=os.environ | environment,
        start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=environment["PWD"],
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def output(command, folder):
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    return (await process.communicate())[0].decode()


@pytest.mark.servers
@pytest.mark.limit(600)
async def test_the_readmes_five_commands_lead_to_the_alert(tmp_path):
    shortened(tmp_path)
    ports = {"9911": free_port(), "9090": free_port(), "9093": free_port()}
    environment = {
        "PWD": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "SPECDEC_LISTEN": f"127.0.0.1:{ports['9911']}",
        "SPECDEC_SCRAPE_INTERVAL": INTERVAL,
        "SPECDEC_LATENCY_WINDOW": "15s",
        "SPECDEC_HISTORY": "60s",
        "SPECDEC_THRESHOLDS__MIN_REQUESTS": "10",
    }
    path = tmp_path / "deploy" / "compose" / "prometheus.yaml"
    path.write_text(re.sub("|".join(ports), lambda match: str(ports[match[0]]), path.read_text()))
    found = commands()
    assert len(found) == 5
    async with AsyncExitStack() as stack:
        for command in found:
            here = command.replace("/tmp/", f"{tmp_path}/")
            here = here.replace("specdec-sidecar", f"{sys.executable} -m sidecar", 1)
            here = here.replace("9093", str(ports["9093"])).replace(
                "alertmanager:9|localhost:9", "alertmanager:|localhost:"
            )
            for start, port in zip(LISTENS, ("9090", "9093"), strict=True):
                if here.startswith(start):
                    here = here.replace(" --config", f" --web.listen-address=127.0.0.1:{ports[port]} --config", 1)
            if here.endswith(" &"):
                await stack.enter_async_context(started(here.removesuffix(" &"), **environment))
            elif "amtool" not in here:
                assert await output(here, tmp_path) == ""
        async with asyncio.timeout(PATIENCE):
            while "SpecDecodeAcceptanceLow" not in (page := await output(here, tmp_path)):
                await asyncio.sleep(1)
    assert re.search(r"context=\"Acceptance [\d.]+%, a loss below 50%", page)
    assert "demo: speculative decoding costs more than it gives" in page
