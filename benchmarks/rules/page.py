"""A sidecar's page after some traffic, and what it would look like later."""

import asyncio
import re
import tempfile
from pathlib import Path

import aiohttp

from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions

_COUNTER = re.compile(r"^# TYPE (\S+) (?:counter|histogram)$", re.MULTILINE)

_VERDICT = re.compile(r"specdec_(model_|engine_)?verdict\{")
_FINDS = re.compile(r"specdec_(finding|acceptance_low|model_acceptance_low|model_collapsed)\{")


async def real_page(seconds: float) -> str:
    """A sidecar's page after ``seconds`` of mixed-temperature traffic.

    The traffic is on a simulated vLLM with the plug-in.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plugin.sock"
        async with SimulatedVllm(SimulatorOptions(speed=4), plugin_socket=path) as vllm:
            environment = {
                "SPECDEC_VLLM_URL": vllm.url,
                "SPECDEC_LISTEN": "127.0.0.1:0",
                "SPECDEC_PLUGIN__SOCKET": str(path),
            }
            async with running(load_settings(None, environment)) as listening:
                traffic = Traffic(vllm, TrafficOptions(mixes=(MIXED,), max_tokens=64))
                asyncio.get_running_loop().call_later(seconds, traffic.stop)
                await traffic.run()
                await asyncio.sleep(2)  # the last requests appear with the next polls
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{listening.port}/metrics") as answer,
                ):
                    return await answer.text()


def series(page: str) -> int:
    """The number of series on a page."""
    return sum(1 for line in page.splitlines() if line and not line.startswith("#"))


def reduced(page: str, text: str) -> str:
    """The sample lines of the families that the rules in ``text`` name."""
    return "".join(
        f"{line}\n"
        for line in page.splitlines()
        if not line.startswith("#") and _family(line) in text
    )


def later(page: str, counters: set[str], factor: float) -> bytes:
    """The page with all counters and histograms multiplied by ``factor``."""
    lines = []
    for line in page.splitlines():
        place, _, value = line.rpartition(" ")
        grown = float(value) * factor if _family(line) in counters else float(value)
        lines.append(f"{place} {grown!r}\n")
    return "".join(lines).encode()


def calm(page: str) -> str:
    """The page of a sidecar that finds nothing wrong: no low rate, no finding, speculation pays."""
    return "".join(f"{_calm(line)}\n" for line in page.splitlines())


def _calm(line: str) -> str:
    place, _, value = line.rpartition(" ")
    if _FINDS.match(line) or (_VERDICT.match(line) and 'verdict="net_positive"' not in line):
        value = "0.0"
    elif _VERDICT.match(line):
        value = "1.0"
    return f"{place} {value}"


def counters_of(page: str) -> set[str]:
    """The names of counters and histograms, without a histogram's suffixes."""
    return set(_COUNTER.findall(page))


def _family(line: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", re.split(r"[{ ]", line, maxsplit=1)[0])
