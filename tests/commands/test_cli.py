"""The command line as a whole."""

import subprocess
import sys

import pytest

from sidecar import __version__
from sidecar.cli import parser
from tests.commands.commands_tools import command

COMMANDS = next(action for action in parser([])._actions if action.dest == "command").choices


async def test_version(finished):
    assert await finished("--version") == (0, f"specdec-sidecar {__version__}\n", "")


async def test_bad_settings_are_refused_before_anything_starts(finished):
    code, out, err = await finished(
        "run", SPECDEC_SCRAPE_INTERVAL="fast", SPECDEC_LISTN="x", SPECDEC_VLLM_URL="ftp://x"
    )
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "SPECDEC_LISTN: unknown setting; did you mean SPECDEC_LISTEN?",
        "SPECDEC_VLLM_URL=ftp://x: expected http or https URL without query and fragment, such as http://HOST:PORT",
        "SPECDEC_SCRAPE_INTERVAL=fast: expected duration, a number of seconds or a number and ms, s, m or h",
    ]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_explains_itself(capsys, name):
    with pytest.raises(SystemExit) as ended:
        command(name, "--help")
    assert ended.value.code == 0
    assert f"usage: specdec-sidecar {name} [-h] [--config FILE]" in capsys.readouterr().out


def test_a_command_does_not_pay_for_anothers_imports():
    """``plan`` needs no HTTP client; were all commands imported, it would have one."""
    code = (
        "import sys; from sidecar.cli import main\n"
        "main(['plan', '--target', '70', '--draft', '8', '--gpu', 'h100'])\n"
        "sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
