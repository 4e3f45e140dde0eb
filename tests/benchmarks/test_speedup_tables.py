"""Tables of the benchmark that runs for an hour on the lab, on simulated servers for seconds."""

import re
from contextlib import AsyncExitStack

import pytest

from benchmarks.speedup.cells import Cell, observed
from benchmarks.speedup.tables import report
from specdec_tools.demo.scheduler import SimulatorOptions
from tests.demo.http_vllm import HttpVllm

pytestmark = [pytest.mark.slow, pytest.mark.limit(300)]
NUMBER = r"\d+\.\d+"


async def test_each_cell_has_a_row_of_speedups_and_a_row_of_times_by_temperature(tmp_path, capsys):
    names, cell = ("plain", "3"), Cell(2, (0.2, 1.0))
    async with AsyncExitStack() as stack:
        servers = []
        for name, tokens in zip(names, (0, 3), strict=True):
            socket = tmp_path / f"{name}.sock"
            options = SimulatorOptions(num_speculative_tokens=tokens, step_seconds=0.004)
            vllm = HttpVllm(options, plugin_socket=socket)
            await stack.enter_async_context(vllm)
            servers.append(await stack.enter_async_context(observed(vllm.url, socket)))
        for server in servers:
            await server.client.connect("the")
        traffic = [await server.run(cell, 4.0) for server in servers]
        report(names, servers, [(cell, traffic)])

    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()]
    mixture = [row[2] for row in rows if row[:2] == ["3", "2"]]
    times = [row for row in rows if row[:2] == ["plain", "2"]]

    assert mixture == ["mixed", "0.2 in the mix", "1.0 in the mix", "0.2", "1.0"]
    assert [row[2] for row in times] == ["0.2", "1.0"]
    assert all(re.fullmatch(NUMBER, number) for row in times for number in row[4:])
