"""The command line as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar import __version__, commands
from sidecar.cli import parser
from tests.commands.commands_tools import command

COMMANDS = next(action for action in parser([])._actions if action.dest == "command").choices


async def test_the_version_is_printed(finished):
    assert await finished("--version") == (0, f"specdec-sidecar {__version__}\n", "")


async def test_bad_settings_are_refused_before_anything_starts(finished):
    code, out, err = await finished("run", SPECDEC_SCRAPE_INTERVAL="fast", SPECDEC_LISTN="x")
    assert (code, out) == (2, "")
    assert [line.split(": ")[0] for line in err.splitlines()] == ["SPECDEC_LISTN", "SPECDEC_SCRAPE_INTERVAL=fast"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_explains_itself(capsys, name):
    with pytest.raises(SystemExit) as ended:
        command(name, "--help")
    assert ended.value.code == 0
    assert f"usage: specdec-sidecar {name} [-h] [--config FILE]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("baseline --out /none/baseline.yaml", "--out: /none/baseline.yaml: no such directory"),
        ("sweep --save /dev", "--save: /dev: is a directory"),
        *(
            (f"compare a b --fail-if-slower {limit}", "--fail-if-slower: expected a share such as 5%")
            for limit in ("0", "x", "101%", "nan")
        ),
        ("report --url ftp://user:secret@x", "--url: expected http or https URL"),
        ("sweep --concurrency 0", "--concurrency: expected a whole number from 1 to 1024"),
        ("sweep --temperatures 0,11", "--temperatures: expected temperatures from 0 to 10"),
        ("sweep --temperatures -0.1", "--temperatures: expected temperatures from 0 to 10"),
        *((f"sweep --extra-body {text}", "--extra-body: expected a JSON object") for text in ("[1]", '{"n":2}')),
        ("sweep --duration soon", "--duration: expected duration, a number of seconds or"),
    ],
)
def test_unreadable_arguments_are_refused_without_repeating_a_password(capsys, arguments, reason):
    with pytest.raises(SystemExit) as ended:
        command(*arguments.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert reason in err
    assert "secret" not in err


@pytest.mark.parametrize("path", ["/dev/null", "/dev/new"])
def test_a_file_that_may_not_be_written_is_refused_before_the_measurement(capsys, monkeypatch, path):
    monkeypatch.setattr("os.access", lambda asked, _mode: str(asked) not in ("/dev/null", "/dev"))  # root may always
    with pytest.raises(SystemExit) as ended:
        command("sweep", "--save", path)
    assert (ended.value.code, f"--save: {path}: not writable" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_imports_another(name):
    """What several of them need has a module of its own."""
    text = (Path(commands.__file__).parent / f"{name}.py").read_text()
    imported = set(re.findall(r"sidecar\.commands\.(\w+)", text))
    assert not imported & set(COMMANDS)


def test_a_command_does_not_pay_for_anothers_imports(tmp_path):
    """``plugin`` needs no HTTP client; were all commands imported, it would have one."""
    code = "import sys; from sidecar.cli import main; main(sys.argv[1:]); sys.exit('aiohttp' in sys.modules)"
    program = [sys.executable, "-c", code, "plugin", tmp_path / "plugin"]
    ended = subprocess.run(program, capture_output=True, check=False)
    assert ended.returncode == 0, ended
