"""The arguments of a sweep; test_sweep.py tests what it measures."""

import json

import pytest

from sidecar.commands.sweep.workload import Load, Workload, levels
from tests.commands.commands_tools import command
from tests.commands.sweep.sweep_tools import simulated


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompts", "/none"), "/none: No such file or directory"),
        (("--api-key-env", "SPECDEC_TEST_NO_SUCH"), "--api-key-env=SPECDEC_TEST_NO_SUCH: empty or not set"),
    ],
)
def test_unusable_arguments_are_refused(capsys, arguments, said):
    assert command("sweep", *arguments) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "ftp://x"), "expected http or https URL"),
        (("--concurrency", "0"), "expected a whole number from 1 to 1024"),
        (("--temperatures", "0,11"), "expected temperatures from 0 to 10"),
        (("--temperatures", "-0.1"), "expected temperatures from 0 to 10"),
        (("--mix", "0:0,1:1"), "with weights above 0"),
        (("--mix", "0.1"), "two temperatures or more"),
        (("--rate", "0"), "expected requests per second up to 1024"),
        (("--duration", "soon"), "expected duration, a number of seconds or"),
        (("--save", "/none/x"), "no such directory"),
    ],
)
def test_unreadable_arguments_are_refused(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        command("sweep", *arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_levels_go_from_light_to_heavy_and_come_once_and_a_mix_brings_its_temperatures_along():
    mix = Workload(((0.1, 50), (1.0, 50)))
    loads = (Load(rate=3.0), Load(rate=1.5), Load(rate=3.0))
    assert [str(level) for level in levels((1.0, 1.0), (mix,), loads)] == [
        f"{workload}, {load}"
        for workload in ("temperature 1", "temperature 0.1", "mix 0.1:50,1:50")
        for load in ("1.5/s", "3/s")
    ]


async def test_the_command_measures_saves_and_shows_its_progress(finished, tmp_path):
    saved = tmp_path / "sweep.json"
    async with simulated() as vllm:
        asked = ("--url", vllm.url, "--concurrency", "4", "--mix", "0:1,1:1", "--requests", "8", "--max-tokens", "8")
        code, out, err = await finished("sweep", *asked, "--json", "--save", str(saved))
    assert code == 0, err
    assert err.startswith("0/24 requests done; measuring temperature 0, concurrency 4\n8/24 requests done, about ")
    printed, written = json.loads(out), json.loads(saved.read_text())
    assert [level["level"] for level in written["levels"]] == [level["level"] for level in printed["levels"]]
    assert [len(level["speculating"]["samples"]) for level in written["levels"]] == [8] * 3
    assert [level["speculating"]["requests"] for level in printed["levels"]] == [8] * 3
    assert [part["requests"] for part in printed["levels"][2]["in_mix"].values()] == [4, 4]
