"""Two servers are on one machine only where that is known, and otherwise differ by more."""

import re
import shlex
from dataclasses import replace

import pytest

from specdec_tools.measuring import machines
from specdec_tools.measuring.comparison import compare, gate
from specdec_tools.measuring.machines import TWO_MACHINES, are_one_machine
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import generated_pair
from tests.http.certificates import Authority

HERE = ("http://127.0.0.1:8000", "http://localhost:8001")


@pytest.mark.parametrize(
    ("urls", "processes", "is_one"),
    [
        (HERE, "GPU-1, 10\nGPU-1, 11\n", True),
        (HERE, "GPU-1, 10\nGPU-2, 11\n", False),
        (HERE, "GPU-1, 10\n", False),  # the other is elsewhere, behind a forwarded port
        (HERE, "", False),
        (("http://a:8000", "http://a:8001"), "GPU-1, 10\nGPU-1, 11\n", False),
        ((HERE[0], "http://b:8000"), "GPU-1, 10\nGPU-1, 11\n", False),
    ],
)
def test_one_machine_is_one_host_and_one_gpu(monkeypatch, urls, processes, is_one):
    monkeypatch.setattr(machines, "_gpu_processes", lambda: processes)

    assert are_one_machine(*urls) == is_one


def on(pair, *, one_machine):
    return [replace(sweep, one_machine=one_machine) for sweep in pair]


def of(comparison, metric="TPOT P50"):
    (found,) = [one for one in comparison.changes if one.metric == metric]
    return found


def test_between_two_machines_a_change_counts_only_beyond_what_they_differ_by():
    """Each has a speed of its own, which rounds do not average out."""
    pair = generated_pair(1, slower=1.035, rounds=8, requests=800)
    one = compare(*on(pair, one_machine=True), names=("A", "B"))
    two = compare(*on(pair, one_machine=False), names=("A", "B"))

    assert (of(one).effect, of(two).effect) == ("slower", None)
    assert of(two).change.error >= TWO_MACHINES
    assert any("may be two machines" in note for note in two.notes)
    assert not any("two machines" in note for note in one.notes)
    assert "or these two, to show it" in two.conclusions[-1]
    assert gate(two, 0.05)[0] == 3


def test_a_large_change_counts_between_two_machines_as_well():
    pair = generated_pair(1, slower=1.3, rounds=8, requests=800)
    found = compare(*on(pair, one_machine=False), names=("A", "B"))

    assert (found.result, of(found).effect) == ("slower", "slower")


def swapped_pair(machine, slower):
    """Each server on each machine, of which the second is slower by ``machine``."""
    first = generated_pair(1, slower=slower * (1 + machine), requests=800)
    second = generated_pair(2, slower=slower / (1 + machine), requests=800)
    return on(first, one_machine=False), tuple(on(second, one_machine=False))


def test_swapping_the_servers_tells_them_from_their_machines():
    """A machine that is 12 % slower hides nothing and adds nothing."""
    equal, equal_again = swapped_pair(0.12, 1.0)
    slower, slower_again = swapped_pair(0.12, 1.08)

    assert of(compare(*equal, names=("A", "B"))).effect == "slower"  # so it seems
    assert of(compare(*equal, names=("A", "B"), swapped=equal_again)).effect is None
    found = compare(*slower, names=("A", "B"), swapped=slower_again)
    assert of(found).change.value == pytest.approx(0.08, abs=0.02)
    assert of(found).effect == "slower"
    assert any("ran on both machines" in note for note in found.notes)


def test_swap_prints_the_two_sweeps_and_measures_nothing(capsys):
    urls = ("--url", "http://eagle:8000", "--against", "http://plain:8000")
    assert command("sweep", *urls, "--swap", "--rounds", "8", "--temperatures", "0,1") == 0
    out = capsys.readouterr().out

    assert "sweep --url http://eagle:8000 --against http://plain:8000" in out
    assert "sweep --url http://plain:8000 --against http://eagle:8000" in out
    assert out.count("--rounds 8 --max-tokens 128 --concurrency 1,8 --temperatures 0,1") == 2
    assert "compare against1.json tested1.json --swapped against2.json tested2.json" in out


def test_swap_repeats_whatever_says_what_is_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "secret")
    prompts = tmp_path / "prompts"
    prompts.write_text('{"prompt": "x"}\n')
    given = (
        "--requests 40 --rounds 9 --max-tokens 64 --concurrency 2,4 --temperatures 0,1"
        " --mix 0:60,1:40 --duration 90s --model m --endpoint completions"
        f" --prompts {prompts} --api-key-env KEY --cacert {Authority(tmp_path).certificate}"
        """ --extra-body '{"top_p": 0.9}'"""
    )
    urls = ("--url", "http://a:8000", "--against", "http://b:8000")
    assert command("sweep", *urls, "--swap", *shlex.split(given)) == 0
    out = capsys.readouterr().out
    assert out.count(given) == 2
    assert "secret" not in out

    options = set(re.findall(r"--[a-z-]+", usage(capsys)))
    assert options - set(re.findall(r"--[a-z-]+", given)) == {
        *("--config", "--url", "--against"),
        *("--save", "--save-against", "--json", "--swap", "--same-machine"),
    }


def usage(capsys):
    with pytest.raises(SystemExit):
        command("sweep", "--help")
    return capsys.readouterr().out.partition("\n\n")[0]


@pytest.mark.parametrize("option", ["--swap", "--same-machine"])
def test_machines_matter_only_to_two_servers(option, capsys):
    assert command("sweep", option) == 2
    assert "--same-machine and --swap: need --against" in capsys.readouterr().err
