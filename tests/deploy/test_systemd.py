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


@pytest.fixture
def systemd():
    """Debian 12's or a later one; an earlier one does not know every line of the unit."""
    program = shutil.which("systemd-analyze")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout if program else "0"
    if int(re.search(r"\d+", said)[0]) < 252:
        pytest.skip("systemd 252 or later is not installed")


def value(name):
    [found] = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return found


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("", ""), ("ProtectSystem=strict", "ProtectSystm=strict"), ("TimeoutStopSec=15", "TimeoutStopSec=soon")],
)
def test_systemd_understands_every_line_and_nothing_else(right, wrong, tmp_path):
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(), flags=re.MULTILINE)
    (tmp_path / INSTANCE).write_text(text.replace(right, wrong))
    command = ["systemd-analyze", "verify", tmp_path / INSTANCE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (INSTANCE in done.stderr) == bool(wrong)


@pytest.mark.usefixtures("systemd")
def test_little_is_left_that_the_service_could_do(tmp_path):
    """``--threshold`` is in tenths; a unit without any hardening has 96."""
    here = tmp_path / INSTANCE
    here.write_text(UNIT.read_text())
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", here]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_command_is_one_that_the_sidecar_has():
    program, *arguments = value("ExecStart").split()
    assert program.endswith("/specdec-sidecar")
    assert parser(arguments).parse_args(arguments).command == "run"


def test_each_instance_has_a_socket_of_its_own_in_the_folder_that_systemd_makes():
    [(name, path)] = re.findall(r"^Environment=(SPECDEC_\w+)=(.*)$", UNIT.read_text(), re.MULTILINE)
    socket = load_settings(None, {name: path}).plugin.socket
    assert str(socket.parent) == f"/run/{value('RuntimeDirectory')}"
    assert "%i" in str(socket)
    assert value("EnvironmentFile").endswith("/%i.env")
    assert value("RuntimeDirectoryMode") == "0755"


def test_vllms_unit_is_told_the_socket_and_the_folder_of_the_plugin():
    comments = " ".join(line[1:].strip() for line in UNIT.read_text().splitlines() if line.startswith("#"))
    [(folder, socket)] = re.findall(r"Environment=PYTHONPATH=(\S+) SPECDEC_PLUGIN__SOCKET=(\S+)", comments)
    assert f"specdec-sidecar plugin {folder}" in comments
    assert f"SPECDEC_PLUGIN__SOCKET={socket}" in UNIT.read_text().replace("%i", "chat")
