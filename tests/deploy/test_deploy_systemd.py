"""The systemd unit: systemd understands all of it, and its times and paths fit the sidecar's."""

import re
import shutil
import subprocess
import sys

import pytest

from sidecar.cli import parser
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import DEPLOY

UNIT = DEPLOY / "systemd" / "specdec-sidecar.service"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def value(name):
    [found] = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return found


def verify(tmp_path, text):
    """systemd-analyze's complaints; it wants the program to be there."""
    here = tmp_path / UNIT.name
    here.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if UNIT.name in line]


@needs_systemd
def test_systemd_understands_every_line(tmp_path):
    assert verify(tmp_path, UNIT.read_text()) == []


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("ProtectSystem=strict", "ProtectSystm=strict"), ("TimeoutStopSec=45", "TimeoutStopSec=soon")],
)
def test_systemds_check_bites(right, wrong, tmp_path):
    text = UNIT.read_text()
    assert right in text
    assert verify(tmp_path, text.replace(right, wrong))


@needs_systemd
def test_little_is_left_that_the_service_could_do(tmp_path):
    """``--threshold`` is in tenths; a unit without any hardening has 96."""
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text())
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", here]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_command_is_one_that_the_sidecar_has():
    program, *arguments = value("ExecStart").split()
    assert program.endswith("/specdec-sidecar")
    assert parser(arguments).parse_args(arguments).command == "run"


def test_it_has_the_time_to_let_requests_end():
    assert float(value("TimeoutStopSec")) > load_settings(None, {}).proxy.drain_timeout


def test_it_may_have_as_many_connections_as_the_proxy_takes():
    # One to the client and one to vLLM.
    assert int(value("LimitNOFILE")) > 2 * load_settings(None, {}).proxy.max_connections


def test_the_middlewares_socket_lies_in_the_folder_that_systemd_makes():
    socket = str(load_settings(None, {}).middleware.socket)
    assert socket.startswith(f"/run/{value('RuntimeDirectory')}/")
    assert value("RuntimeDirectoryMode") == "0755"
