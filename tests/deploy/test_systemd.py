"""The systemd template unit: systemd understands all of it, and its paths fit the sidecar's."""

import re
import shutil
import subprocess
import sys

import pytest

from sidecar.cli import parser
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import DEPLOY

UNIT = DEPLOY / "systemd" / "specdec-sidecar@.service"
INSTANCE = "specdec-sidecar@chat.service"


TEXT = UNIT.read_text()


@pytest.fixture
def analyze(tmp_path):
    """Runs systemd-analyze on a unit's text.

    It is Debian 12's or later; an earlier one does not know every line.
    """
    program = shutil.which("systemd-analyze")
    version = "0"
    if program:
        command = [program, "--version"]
        version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if int(re.search(r"\d+", version)[0]) < 252:
        pytest.skip("systemd 252 or later is not installed")

    def run(text, *arguments):
        (tmp_path / INSTANCE).write_text(text)
        command = [program, *arguments, tmp_path / INSTANCE]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def value(name):
    [match] = re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)
    return match


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("ProtectSystem=strict", "ProtectSystm=strict"),
        ("TimeoutStopSec=15", "TimeoutStopSec=soon"),
    ],
)
def test_systemd_understands_every_line_and_complains_of_a_wrong_one(right, wrong, analyze):
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE)
    assert (INSTANCE in analyze(text.replace(right, wrong), "verify").stderr) == bool(wrong)


def test_the_service_may_do_little(analyze):
    """``--threshold`` is in tenths; a unit without any hardening has 96."""
    assert analyze(TEXT, "security", "--offline=yes", "--threshold=20").returncode == 0


def test_the_command_is_one_that_the_sidecar_has():
    program, *arguments = value("ExecStart").split()
    assert program.endswith("/specdec-sidecar")
    assert parser(arguments).parse_args(arguments).command == "run"


def test_each_instance_has_a_socket_of_its_own_in_the_folder_that_systemd_makes():
    [(name, path)] = re.findall(r"^Environment=(SPECDEC_\w+)=(.*)$", TEXT, re.MULTILINE)
    socket = load_settings(None, {name: path}).plugin.socket
    assert str(socket.parent) == f"/run/{value('RuntimeDirectory')}"
    assert "%i" in str(socket)
    assert value("EnvironmentFile").endswith("/%i.env")
    assert value("RuntimeDirectoryMode") == "0755"


def test_the_comments_give_vllms_unit_the_socket_and_the_folder_of_the_plugin():
    comments = " ".join(line[1:].strip() for line in TEXT.splitlines() if line.startswith("#"))
    [(folder, socket)] = re.findall(
        r"Environment=PYTHONPATH=(\S+) SPECDEC_PLUGIN__SOCKET=(\S+)", comments
    )
    assert f"specdec-sidecar plugin {folder}" in comments
    assert f"SPECDEC_PLUGIN__SOCKET={socket}" in TEXT.replace("%i", "chat")
