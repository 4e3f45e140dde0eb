"""What a sweep takes and what it makes of numbers; what it measures is in test_sweep_command.py."""

import io
from dataclasses import replace

import pytest

from sidecar.analysis.verdict import VerdictThresholds
from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.options import Level, SweepOptions
from sidecar.commands.sweep.prompts import PromptsError, read_prompts
from sidecar.commands.sweep.render import Progress
from sidecar.commands.sweep.summary import level_summary, temperature_summary
from sidecar.errors import SettingsError
from tests.commands.commands_tools import command

MARKER = "zebrafish"


def measured(at_once, tpot, requests=()):
    return Measured(Level(0.0, at_once), requests, 0, 0, 0, 1.0, None, others=False, complete=True)


@pytest.mark.parametrize(
    ("speedups", "pays_up_to", "stops_at"),
    [
        ([1.9, 1.4, 1.1], 16, None),
        ([1.9, 1.4, 0.9], 4, 16),
        ([1.9, 0.8, 1.1], 1, 4),
        ([0.9, 0.8, 0.7], None, 1),
        ([1.0, 1.2, 1.2], None, 1),
        ([None, None, None], None, None),
    ],
)
def test_the_load_at_which_speculation_stops_paying(speedups, pays_up_to, stops_at):
    levels = [
        replace(level_summary(measured(at_once, None), None), speedup=speedup)
        for at_once, speedup in zip((1, 4, 16), speedups, strict=True)
    ]
    found = temperature_summary(levels, [measured(1, None)], VerdictThresholds())
    assert (found.pays_up_to, found.stops_at) == (pays_up_to, stops_at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--concurrency", "0"), "--concurrency: write one or more from 1 to 1024"),
        (("--temperatures", "0,11"), "--temperatures: write one or more from 0 to 10"),
        (("--temperatures", "nan"), "--temperatures: write one or more from 0 to 10"),
        (("--requests", "0"), "--requests, --max-tokens: at least 1 request"),
        (("--requests", "20000"), "200,000 requests are more than 100,000"),
        (("--prompts", "/none"), "--prompts: /none: No such file or directory"),
        (("--api-key-env", "SPECDEC_TEST_NO_SUCH"), "--api-key-env=SPECDEC_TEST_NO_SUCH: no key in it"),
    ],
)
def test_what_can_not_be_used_is_refused(capsys, arguments, said):
    assert command("sweep", *arguments) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("arguments", [("--url", "ftp://x"), ("--concurrency", "a"), ("--duration", "soon")])
def test_what_can_not_be_read_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        command("sweep", *arguments)
    assert ended.value.code == 2


def test_both_servers_count_towards_the_bound():
    with pytest.raises(SettingsError, match="120,000 requests"):
        SweepOptions("http://a", baseline_url="http://b", temperatures=(0.0,), at_once=(1,), requests=60_000)


def test_levels_go_from_light_to_heavy_and_come_once():
    levels = SweepOptions("http://a", temperatures=(1.0, 0.0, 1.0), at_once=(8, 1, 8)).levels
    assert levels == ((1.0, 1), (1.0, 8), (0.0, 1), (0.0, 8))


def test_prompts_come_as_lines_or_as_json(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('plain\n\n{"prompt": "a\\nb"}\n"c"\n"d" he said\n{"text": "e", "x": 1}\n')
    assert read_prompts(file) == ("plain", "a\nb", "c", '"d" he said', "e")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 prompts; write 1 to 10,000"),
        (b'ok\n{"zebrafish": 1}\n', "line 2: no text under any of prompt, text, question, input"),
        (b"{zebrafish", "line 1: not JSON"),
        (b"\xff", "not UTF-8 text"),
        (b"x\n" * 10_001, "10001 prompts"),
        (b"x" * (16 * 1024 * 1024 + 1), "over 16 MiB"),
    ],
)
def test_prompts_that_can_not_be_used(tmp_path, content, said):
    file = tmp_path / "prompts"
    file.write_bytes(content)
    with pytest.raises(PromptsError) as found:
        read_prompts(file)
    assert said in str(found.value)
    assert MARKER not in str(found.value)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_for_terminals_alone(terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    progress = Progress(20, stream)
    progress(Level(0.7, 4), 10)
    progress.clear()
    shown = f"\r\x1b[K[{'#' * 15}{'-' * 15}] 10/20  temperature 0.7, 4 at once\r\x1b[K"
    assert stream.getvalue() == (shown if terminal else "")
