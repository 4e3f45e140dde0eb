"""The command line as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.cli import parser
from tests.commands.commands_tools import command

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:1"
COMMANDS = next(action for action in parser([])._actions if action.dest == "command").choices


async def test_the_version_is_printed(finished):
    assert await finished("--version") == (0, f"specdec-sidecar {__version__}\n", "")


async def test_bad_settings_are_refused_before_anything_starts(finished):
    """All of them at once, each with its variable."""
    code, out, err = await finished("run", SPECDEC_SCRAPE_INTERVAL="fast", SPECDEC_LISTN="x")
    assert (code, out) == (2, "")
    assert [line.split(": ")[0] for line in err.splitlines()] == [
        "SPECDEC_LISTN",
        "SPECDEC_SCRAPE_INTERVAL=fast",
    ]


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
            (f"sweep --save {path}", f"--save: {path}: not writable")
            for path in ("/dev/null", "/dev/new")
        ),
        *(
            (
                f"compare a b --fail-if-slower {limit}",
                "--fail-if-slower: expected a share such as 5%",
            )
            for limit in ("0", "x", "101%", "nan")
        ),
        ("report --url ftp://user:secret@x", "--url: expected http or https URL"),
        ("sweep --concurrency 0", "--concurrency: expected a whole number from 1 to 1024"),
        ("sweep --temperatures 0,11", "--temperatures: expected temperatures from 0 to 10"),
        ("sweep --temperatures -0.1", "--temperatures: expected temperatures from 0 to 10"),
        *(
            (f"sweep --extra-body {text}", "--extra-body: expected a JSON object")
            for text in ("[1]", '{"n":2}')
        ),
        ("sweep --duration soon", "--duration: expected duration, a number of seconds or"),
    ],
)
def test_unusable_arguments_are_refused_without_repeating_a_password(
    capsys, monkeypatch, arguments, reason
):
    # Root may always.
    monkeypatch.setattr("os.access", lambda path, _mode: str(path) not in {"/dev", "/dev/null"})
    with pytest.raises(SystemExit) as ended:
        command(*arguments.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert reason in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        *(
            (f"baseline {load}", f"cannot read vLLM's metrics at {NOWHERE} (unreach")
            for load in ("", "--load 1 --plugin-socket PATH")
        ),
        (
            "sweep",
            (
                f"{NOWHERE}: cannot connect (ClientConnectorError); is vLLM running, and is this"
                " its address?"
            ),
        ),
    ],
)
def test_a_vllm_that_is_down_is_named_at_once(capsys, socket_path, arguments, reason):
    """Waiting takes longer than a test may."""
    asked = arguments.replace("PATH", str(socket_path)).split()
    assert command(*asked, "--duration", "1h", VLLM_URL=NOWHERE) == 1
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1].startswith(reason)) == ("", True)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_imports_another(name):
    """What several of them need has a module of its own."""
    (path,) = ROOT.glob(f"*/commands/{name}.py")
    imported = set(re.findall(r"\.commands\.(\w+)", path.read_text()))
    assert not imported & set(COMMANDS)


def test_a_command_does_not_pay_for_anothers_imports(tmp_path):
    """``plugin`` needs no HTTP client; were all commands imported, it would have one."""
    code = (
        "import sys; from sidecar.cli import main; main(sys.argv[1:]); sys.exit('aiohttp' in"
        " sys.modules)"
    )
    program = [sys.executable, "-c", code, "plugin", tmp_path / "plugin"]
    ended = subprocess.run(program, capture_output=True, check=False)
    assert ended.returncode == 0, ended
