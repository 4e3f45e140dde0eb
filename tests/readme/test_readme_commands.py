"""Runs every command that the README shows, with addresses and times that suit a test."""

import asyncio
import os
import re
import shlex
import signal
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.measuring.sweep_result import encode
from tests.app.app_tools import running_sidecar, traffic
from tests.commands.sweep_tools import generated_level, sweep_of
from tests.demo.http_vllm import HttpVllm
from tests.marks import slow

ROOT = Path(__file__).parents[2]
# Run elsewhere: `make test` runs this test, and the others need a real vLLM (tests/lab).
ELSEWHERE = (
    "make test",
    "PYTHONPATH=/shared/specdec vllm serve",
    "PYTHONPATH=/shared/specdec SPECDEC_PLUGIN__SOCKET=/tmp/plain.sock vllm serve",
)
RUNS = '"sidecar started"'


def commands():
    """The command lines in the README's indented blocks, without comments."""
    lines = [
        line[4:]
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("    ")
    ]
    stripped = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [
        line
        for line in stripped
        if re.match(r"([A-Z_]+=\S+ )*(make|specdec-sidecar|vllm serve|scripts)\b", line)
    ]


def here(line):
    return not line.startswith(ELSEWHERE)


@asynccontextmanager
async def world(tmp_path, folder, *, busy):
    """Two simulated vLLMs, one without speculation, traffic, and a sidecar.

    Commands find what they need by the address of these.

    Not ``busy``: no traffic. A sweep would wait at every level for counters that others move.
    """
    plain = SimulatorOptions(speed=5, num_speculative_tokens=0)
    async with (
        HttpVllm(SimulatorOptions(speed=5)) as vllm,
        HttpVllm(plain, plugin_socket=folder / "plain.sock") as baseline,
        running_sidecar(folder / "world" / "plugin.sock", vllm.url) as page,
        traffic(vllm) if busy else nullcontext(),
    ):
        yield {
            "http://127.0.0.1:8000": vllm.url,
            "http://127.0.0.1:8001": baseline.url,
            "/shared": str(tmp_path),
            # Longer, so that even a busy machine answers a request at each of them.
            "--load 1,2,4,8,16": "--load 1,16 --duration 9s",
            "/tmp/plain.sock": str(folder / "plain.sock"),
            "10m": "3s",
            "--rounds 8": "--rounds 1",
            "--format": f"--url {page.url} --format",
            "http://alertmanager-0:9093": "http://127.0.0.1:9",
        }


def ends_of(line):
    """The exit codes that a shown command may end with here."""
    if line.startswith("make run"):
        return {-signal.SIGTERM}  # make itself ends by the signal that ends what it has started
    if " baseline " in line:
        return {0, 3}  # 3: the file is written, and so short a time does not tell all
    return {0}


async def start(line, vllm, tmp_path, folder):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPECDEC_VLLM_URL": vllm,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_PLUGIN__SOCKET": str(folder / "plugin.sock"),
        "SPECDEC_SCRAPE_TIMEOUT": "60s",  # a busy machine answers late
        "TMPDIR": str(folder),  # where the demo makes its socket
    }
    return await asyncio.create_subprocess_shell(
        line if line.startswith("make") else f"exec env {line}",
        env=environment,
        cwd=ROOT if line.startswith("make") else tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def finish(process):
    """Waits for its end; a command that runs until stopped is stopped once it runs."""
    output = b""
    while piece := await process.stdout.readline():
        output += piece
        if RUNS.encode() in piece:
            os.killpg(process.pid, signal.SIGTERM)
    await process.wait()
    return output.decode()


def test_the_readme_has_commands():
    assert len([line for line in commands() if here(line)]) >= 14
    assert {"make demo", "make test"} <= set(commands())


def by_its_cost(line):
    """A command that measures takes seconds."""
    measures = any(word in line for word in (" baseline ", " sweep ", " record "))
    return slow(line) if measures else line


@pytest.mark.parametrize("line", [by_its_cost(line) for line in commands() if here(line)])
async def test_command_works(line, tmp_path, folder):
    if "replay" in line:
        (tmp_path / "recording").symlink_to(ROOT / "tests" / "data" / "levels" / "k3")
    if "compare" in line:
        for seed, name in enumerate(("before.json", "after.json")):
            (tmp_path / name).write_bytes(encode(sweep_of(generated_level(seed, requests=4000))))
    if "BASELINE_FILE" in line:
        (tmp_path / "baseline.yaml").write_text(
            "baseline: {demo: {tpot: {p50: 0.01, p99: 0.03}}}\n"
        )
    async with world(tmp_path, folder, busy=" sweep " not in line) as known:
        adapted = line
        for shown, real in known.items():
            adapted = adapted.replace(shown, real)
        if line == "make demo":
            adapted = "make demo ARGS='--duration 3s'"
        if " sweep " in line:
            adapted += " --requests 4 --max-tokens 16"
        vllm = known["http://127.0.0.1:8000"]
        process = await start(adapted, vllm, tmp_path, folder)
        try:
            output = await finish(process)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in ends_of(line), f"{shlex.join(adapted.split())}\n{output}"
    assert "Traceback" not in output
    assert (RUNS in output) == (" run" in line and "make demo" not in line)
