"""The whole process: CPU per poll of a real HTTP server, and memory over hours of polls."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pages import real_page, with_engines
from benchmarks.table import Row

LISTEN = "127.0.0.1:19911"
_POLLS_A_SECOND = 10
_SECONDS = 20
_TICK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        body: bytes = response.read()
        return body


@contextlib.contextmanager
def sidecar_process(engines: int, socket: str, **settings: str) -> Iterator[tuple[str, int]]:
    """A running sidecar of a vLLM page that grows.

    Yields the URL of that page's server, and the sidecar's pid.
    """
    with started("-m", "benchmarks.core.page_server", str(engines)) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        addresses = {
            "SPECDEC_VLLM_URL": url,
            "SPECDEC_LISTEN": LISTEN,
            "SPECDEC_PLUGIN__SOCKET": socket,
        }
        with started("-m", "sidecar", "run", **addresses, **settings) as process:
            deadline = time.monotonic() + 30
            while not _is_up():
                assert time.monotonic() < deadline, "the sidecar does not come up"
                time.sleep(0.2)
            yield url, process.pid


def _is_up() -> bool:
    with contextlib.suppress(OSError):
        return b"specdec_up 1.0" in get(f"http://{LISTEN}/metrics")
    return False


def cpu_rows() -> Iterator[Row]:
    """CPU that a running sidecar uses per poll.

    It is compared with prometheus_client parsing the same page once.
    """
    settings = {
        "SPECDEC_SCRAPE_INTERVAL": str(1 / _POLLS_A_SECOND),
        "SPECDEC_SCRAPE_CPU_SHARE": "1",
    }
    for engines in (1, 8):
        parse = _parse_seconds(with_engines(real_page(), engines).decode())
        with (
            tempfile.TemporaryDirectory() as folder,
            sidecar_process(engines, f"{folder}/s", **settings) as (url, pid),
        ):
            polls, cpu = int(get(f"{url}/polls")), cpu_seconds(pid)
            for _ in range(_SECONDS):
                # like a Prometheus that scrapes once every ten polls
                get(f"http://{LISTEN}/metrics")
                time.sleep(1)
            cost = (cpu_seconds(pid) - cpu) / (int(get(f"{url}/polls")) - polls)
        what = f"CPU for a poll, {engines} engine(s): ours ÷ prometheus_client's parse alone"
        measured = (
            f"{cost * 1e3:.2f} ÷ {parse * 1e3:.2f} ms; {cost:.2%} of a core at one poll a second"
        )
        yield Row(what, measured, cost / parse, at_most=0.5)


def _parse_seconds(text: str) -> float:
    """CPU seconds that prometheus_client takes to parse a page."""
    costs = []
    for _ in range(9):
        start = time.process_time()
        list(text_string_to_metric_families(text))
        costs.append(time.process_time() - start)
    return statistics.median(costs)


def memory_rows() -> Iterator[Row]:
    """Resident memory after one and two hours' worth of polls, for one engine and for eight."""
    for engines, most in ((1, 64), (8, 72)):
        with started("-m", "benchmarks.core.hours", str(engines)) as process:
            assert process.stdout is not None
            first, second = json.loads(process.stdout.readline())
        what, growth = f"resident after an hour of polls, {engines} engine(s)", second - first
        yield Row(what, f"then {second:.1f} after two", first, at_most=most, unit="MiB")
        what = f"growth in the second hour, {engines} engine(s)"
        yield Row(what, f"{growth:.2f} MiB", growth, at_most=0.5, unit="MiB")
