"""The demo's story as its page tells it, in a browser. README's picture is of the second act."""

import signal
from contextlib import suppress

import aiohttp
import pytest

from tests.debian_servers import free_port
from tests.export.page.test_page import TEXT
from tests.page import Page
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

PAYS, LOSES = "net_positive", "net_negative"
ACTS = (  # the verdict by temperature, whether there is a remedy to paste, and what the page says
    ({"0": PAYS}, False, "Speculation pays"),
    ({"0": PAYS, "0.7-1": LOSES}, True, "draft_sample_method"),
    ({"0": PAYS, "0.7-1": PAYS}, False, "Speculation pays"),
)


def told(status):
    """The verdict at each temperature that has one, and whether there is a remedy to paste."""
    (model,) = status["models"]
    verdicts = {
        part["temperature"]: part["judgement"]["verdict"]
        for part in model["temperatures"]
        if part["judgement"]["verdict"] in (PAYS, LOSES)
    }
    options = [one["option"] for one in model["explanations"] if one["option"]]
    return verdicts, any("probabilistic" in option for option in options)


async def test_it_pays_hot_traffic_loses_and_with_the_remedy_it_gains(program, browser, pictures):
    address = f"127.0.0.1:{free_port()}"
    arguments = {"SPECDEC_LISTEN": address, "TMPDIR": "/tmp"}

    async def shown():
        with suppress(aiohttp.ClientConnectionError):
            status = await Page(f"http://{address}").status()
            return told(status) if status["models"] else None
        return None

    async with program("demo", **arguments) as process, browser() as tab:
        for number, (verdicts, has_remedy, said) in enumerate(ACTS, 1):
            await until(shown, (verdicts, has_remedy), seconds=120, pause=0.2)
            await tab.open(f"http://{address}/", width=1280, height=800)
            await tab.until(f"{TEXT}.includes({said!r})")
            await tab.screenshot(pictures / f"demo-{number}.png")
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()

    assert [line for line in out.decode().splitlines() if " UTC  " in line]
