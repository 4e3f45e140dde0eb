import math
import re

import pytest
import yaml

from sidecar.commands.baseline.watch import Watched, from_recording
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from tests.app.app_tools import traffic
from tests.commands.commands_tools import LEVELS, command
from tests.demo.http_vllm import HttpVllm
from tests.engine.engine_tools import snapshot

NOWHERE = "http://127.0.0.1:1"


async def test_a_vllm_that_speculates_gives_latencies_but_no_plain_step_times(finished, tmp_path):
    file = tmp_path / "baseline.yaml"
    async with HttpVllm(SimulatorOptions(speed=5)) as vllm:
        async with traffic(vllm):
            asked = ("--url", vllm.url, "--duration", "3s", "--out", str(file))
            code, out, err = await finished("baseline", *asked)
        refused = await finished("baseline", "--url", vllm.url, "--duration", "1h", "--load", "2")
    assert (code, out) == (0, ""), err
    assert "demo: no plain step times (it speculates)" in err.splitlines()
    written = yaml.safe_load(file.read_text())
    assert set(written) == {"baseline"}
    phases = written["baseline"]["demo"]
    assert set(phases) == {"ttft", "itl", "tpot", "e2e", "queue"}
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).baselines["demo"]
    assert loaded["tpot"][0.99] == phases["tpot"]["p99"] > 0
    coarse = re.search("^demo: (.*): interpolated, since P99 is in vLLM's first bucket$", err, re.MULTILINE)
    in_first = phases["queue"]["p99"] <= 0.3  # where no request had to wait for a busy machine
    assert in_first == (coarse is not None and "queue" in coarse[1].split(", "))
    assert refused[:2] == (1, "")
    assert refused[2].endswith(" speculates: --load needs a vLLM that does not\n")


def test_an_engine_whose_counters_cannot_be_used_speculates_too(recorded):
    watched = Watched()
    watched.scraped(0.0, 0.1, 1.0, snapshot(recorded("vllm-0.9.2-v0.prom")))
    assert len(watched.drafted) == 1


async def test_baseline_of_an_idle_vllm_writes_nothing(finished, tmp_path):
    async with HttpVllm() as vllm:
        code, out, err = await finished("baseline", "--duration", "1s", SPECDEC_VLLM_URL=vllm.url)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == ("no requests finished, so there is nothing to write; watch longer, or send traffic")


@pytest.mark.parametrize("load", [(), ("--load", "1")])
async def test_baseline_of_a_vllm_that_is_down_says_so_at_once(finished, load):
    """Longer than a test may take."""
    code, out, err = await finished("baseline", "--url", NOWHERE, "--duration", "1h", *load)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(f"cannot read vLLM's metrics at {NOWHERE} (unreachable: ")


def test_a_baseline_that_cannot_be_written_is_refused_at_once_or_printed(capsys, tmp_path):
    nowhere = tmp_path / "none" / "baseline.yaml"
    with pytest.raises(SystemExit):
        command("baseline", "--out", str(nowhere))
    assert f"argument --out: {nowhere}: no such directory" in capsys.readouterr().err
    assert command("baseline", "--recording", str(LEVELS / "plain"), "--out", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert f"--out={tmp_path}: Is a directory; printed instead" in printed.err
    assert yaml.safe_load(printed.out)["plain_steps"]


def test_a_recording_has_the_load_that_it_had(capsys):
    with pytest.raises(SystemExit):
        command("baseline", "--recording", str(LEVELS / "plain"), "--load", "1,2")
    assert "argument --load: not allowed with argument --recording" in capsys.readouterr().err


def test_levels_that_were_measured_for_too_short_a_time_are_named(capsys, monkeypatch):
    async def watch(*_: object) -> Watched:
        return from_recording(LEVELS / "plain")

    monkeypatch.setattr("sidecar.commands.baseline.command.watch", watch)
    assert command("baseline", "--load", "1,16") == 0
    assert "not 16" not in capsys.readouterr().err
    assert command("baseline", "--load", "1,64") == 0
    assert re.search(
        "running requests, not 64: measure longer, with --duration$", capsys.readouterr().err, re.MULTILINE
    )


async def test_plain_step_times_of_a_vllm_without_speculation(finished, tmp_path):
    """The command sends the requests itself, and the settings read the file that it writes."""
    file = tmp_path / "baseline.yaml"
    async with HttpVllm(SimulatorOptions(num_speculative_tokens=0, speed=8)) as vllm:
        argv = ("--url", vllm.url, "--load", "1,4", "--duration", "12s", "--max-tokens", "40", "--gpu", "H100")
        often = {"SPECDEC_SCRAPE_INTERVAL": "150ms", "SPECDEC_SCRAPE_CPU_SHARE": "1"}  # a slow machine polls less
        code, out, err = await finished("baseline", *argv, "--out", str(file), **often)
    assert (code, out) == (0, ""), err
    steps = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).plain_step_times["demo"]
    assert 0 < steps.running[0] <= 1.1  # less where a busy machine is late with the next request
    assert steps.running[0] < steps.running[-1] <= 5
    assert all(0 < one < 1 for one in steps.seconds)
    assert [math.hypot(*row) for row in steps.deviations] == pytest.approx(steps.errors, abs=2e-6)
    assert steps.gpu == "H100"
    assert steps.measured is not None
