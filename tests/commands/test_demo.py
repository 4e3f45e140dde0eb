import signal
from contextlib import suppress

import aiohttp
import pytest

from sidecar.requests.keys import GROUPED, Table
from tests.debian_servers import free_port
from tests.page import Page
from tests.waiting import until


@pytest.mark.slow
async def test_losing_demo_is_split_and_loses_until_it_is_interrupted(program):
    """It shows every table of the plug-in, and no request of it has failed."""
    address = f"127.0.0.1:{free_port()}"
    # It makes its socket among the temporary files, whose path may be too long for one.
    arguments = {
        "SPECDEC_LISTEN": address,
        "SPECDEC_THRESHOLDS__MIN_REQUESTS": "1",
        "TMPDIR": "/tmp",
    }
    drafting = []

    async def state():
        """What is shown, once it can be judged."""
        with suppress(aiohttp.ClientConnectionError):
            status = await Page(f"http://{address}").status()
            for model in status["models"]:
                tallies = [part["tally"] for part in model["temperatures"]]
                drafting[:] = [tally for tally in tallies if tally["draft_tokens"] > 200]
                grouped = {
                    group["by"] for group in model["groups"] if group["tally"]["draft_tokens"]
                }
                shown = (
                    status["plugin"]["state"],
                    model["judgement"]["verdict"],
                    model["engines"][0]["coverage"],
                )
                return *shown, grouped, len(drafting) >= 3
        return None

    async with program("demo", "--losing", **arguments) as process:
        groups = {*GROUPED} - {Table.ADAPTER}
        losing = ("observing", "net_negative", 1, groups, True)
        await until(state, losing, seconds=60, pause=0.2)
        drafted = sum(tally["draft_tokens"] for tally in drafting)
        assert sum(tally["accepted_tokens"] for tally in drafting) < 0.5 * drafted
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert f"  page        http://{address}/" in out.decode().splitlines()
    completed, failed = [
        int(word) for word in out.decode().splitlines()[-1].split() if word.isdigit()
    ]
    assert completed > 0
    assert failed == 0


@pytest.mark.slow
@pytest.mark.parametrize(("option", "is_found"), [((), True), (("--fixed",), False)])
async def test_the_demo_tells_milliseconds_and_finds_greedy_drafting_until_it_is_fixed(
    program, option, is_found
):
    """Its baseline covers its traffic, so the first sentence is the time that is saved.

    Some replies loop, as many as the baseline has.
    """
    address = f"127.0.0.1:{free_port()}"
    arguments = {
        "SPECDEC_LISTEN": address,
        "SPECDEC_THRESHOLDS__MIN_REQUESTS": "10",
        "TMPDIR": "/tmp",
    }

    async def found():
        """Whether it is found, once enough requests have finished on both sides."""
        with suppress(aiohttp.ClientConnectionError):
            status = await Page(f"http://{address}").status()
            for model in status["models"]:
                ended = {group["group"]: group["tally"]["requests"] for group in model["groups"]}
                if min(ended.get("greedy", 0), ended.get("plain", 0)) >= 40:
                    return "greedy_drafting" in [
                        finding["code"] for finding in model["explanations"]
                    ]
        return None

    async def saves():
        """Whether the headline is the time per token."""
        text = (await Page(f"http://{address}").status())["answer"]["text"]
        return text.startswith("Speculation pays: per token, it saves ")

    async def bad_endings():
        """The findings on how replies end, once some end in a loop."""
        status = await Page(f"http://{address}").status()
        (model,) = status["models"]
        if not (model["endings"] and model["endings"]["shares"]["loop"]):
            return None
        codes = {finding["code"] for finding in model["explanations"]}
        return codes & {"looping", "empty_replies"}

    async with program("demo", *option, **arguments) as process:
        await until(found, is_found, seconds=120, pause=0.2)
        await until(saves, seconds=60, pause=0.2)
        await until(bad_endings, set(), seconds=60, pause=0.2)
        process.send_signal(signal.SIGINT)
        await process.communicate()
