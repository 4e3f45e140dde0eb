"""The benchmark that runs for half an hour on the lab, on simulated servers for seconds."""

import re

import pytest

from benchmarks.speedup.contexts import arguments, compare
from specdec_tools.demo.scheduler import SimulatorOptions
from tests.demo.http_vllm import HttpVllm

OPTIONS = {"cached_share": 1.0, "prefix_hits": 1.0, "step_seconds": 0.004}


@pytest.mark.slow
@pytest.mark.limit(300)
async def test_it_prints_the_truth_and_what_the_sidecar_shows(tmp_path, capsys):
    """Each cell has a row with the speedups and their errors, and the baseline can be reused."""
    sockets = [tmp_path / "plain.sock", tmp_path / "speculating.sock"]
    plain, speculating = (
        HttpVllm(SimulatorOptions(num_speculative_tokens=tokens, **OPTIONS), plugin_socket=socket)
        for tokens, socket in zip((0, 3), sockets, strict=True)
    )
    async with plain, speculating:
        served = list(zip((plain.url, speculating.url), sockets, strict=True))
        common = ["--rounds", "2", "--seconds", "3", "--cells", "2x20,1x400"]
        await compare(arguments([*common, "--baseline", "45"]), served)
        first = capsys.readouterr().out
        baseline = tmp_path / "baseline.yaml"
        baseline.write_text(first[: first.index("| at once")])
        await compare(arguments([*common, "--baseline", str(baseline)]), served)

    for printed in (first, capsys.readouterr().out):
        rows = [line.split(" | ") for line in printed.splitlines() if re.match(r"\| \d", line)]
        assert [row[:2] for row in rows] == [["| 2", "20"], ["| 1", "400"]]
        for row in rows:
            for ratio in row[4:6]:
                assert re.fullmatch(r"\d\.\d{3} ± \d\.\d{3}", ratio)
            # A baseline of seconds may not reach a load on a busy machine.
            assert re.fullmatch(r"\d\.\d{3} ± \d\.\d{3}|withheld .+", row[6])
