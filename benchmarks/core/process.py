"""The whole process: CPU per poll of a real HTTP server, and memory over hours of polls."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pages import real_page, with_engines
from benchmarks.table import Row

_POLLS_A_SECOND = 10
_SECONDS = 20
_TICK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
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


def wait_up(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if b"specdec_up 1.0" in get(url):
                return
        time.sleep(0.2)
    raise TimeoutError("the sidecar does not come up")


def cpu_rows() -> list[Row]:
    """CPU that a running sidecar uses per poll, compared with prometheus_client parsing the same page once."""
    rows = []
    for engines in (1, 8):
        parse = _parse_seconds(with_engines(real_page(), engines).decode())
        with started("-m", "benchmarks.core.page_server", str(engines)) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            settings = {
                "SPECDEC_VLLM_URL": url,
                "SPECDEC_LISTEN": "127.0.0.1:19911",
                "SPECDEC_SCRAPE_INTERVAL": str(1 / _POLLS_A_SECOND),
                "SPECDEC_SCRAPE_CPU_SHARE": "1",
                "SPECDEC_PLUGIN__SOCKET": f"/tmp/specdec-benchmark-{os.getpid()}.sock",
            }
            with started("-m", "sidecar", "run", **settings) as process:
                ours = "http://127.0.0.1:19911/metrics"
                wait_up(ours)
                polls, cpu = _polls(url), cpu_seconds(process.pid)
                for _ in range(_SECONDS):
                    get(ours)  # like a Prometheus that scrapes once every ten polls
                    time.sleep(1)
                polls = _polls(url) - polls
                cost = (cpu_seconds(process.pid) - cpu) / polls
                rows.append(
                    Row(
                        f"CPU for a poll, {engines} engine(s): ours ÷ prometheus_client's parse alone",
                        f"{cost * 1e3:.2f} ÷ {parse * 1e3:.2f} ms; {cost:.2%} of a core at one poll a second",
                        cost / parse,
                        at_most=0.5,
                    )
                )
    return rows


def _parse_seconds(text: str) -> float:
    """CPU seconds that prometheus_client takes to parse a page."""
    costs = []
    for _ in range(9):
        start = time.process_time()
        list(text_string_to_metric_families(text))
        costs.append(time.process_time() - start)
    return statistics.median(costs)


def _polls(url: str) -> int:
    return int(get(f"{url}/polls"))


def memory_rows() -> list[Row]:
    """Resident memory after one and two hours' worth of polls, for one engine and for eight."""
    rows = []
    for engines, most in ((1, 64), (8, 72)):
        with started("-m", "benchmarks.core.hours", str(engines)) as process:
            assert process.stdout is not None
            first, second = json.loads(process.stdout.readline())
        rows.append(
            Row(
                f"resident after an hour of polls, {engines} engine(s)",
                f"then {second:.1f} after two",
                first,
                at_most=most,
                unit="MiB",
            )
        )
        rows.append(
            Row(
                f"growth in the second hour, {engines} engine(s)",
                f"{second - first:.2f} MiB",
                second - first,
                at_most=0.5,
                unit="MiB",
            )
        )
    return rows
