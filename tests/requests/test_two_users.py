"""The sidecar and vLLM run as different users, without capabilities, and share a folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requests.packets import HELLO, packet

SIDECAR, VLLM, SHARED_GROUP = 64_101, 64_102, 64_103
ROOT = Path(__file__).parents[2]
ALONE = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")

RECEIVES = """
import asyncio, sys, structlog
from pathlib import Path
from sidecar.requests.receiver import PluginReceiver

def sink(connection, message):
    print(type(message).__name__.lower(), flush=True)

async def main():
    async with PluginReceiver(Path(sys.argv[1]), sink, structlog.get_logger()) as receiver:
        print("listening" if not receiver.problem else receiver.problem, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
SENDS = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
    one.connect(sys.argv[1])
    one.send(sys.argv[2].encode())
"""
PACKET = packet(hello=HELLO).decode()


def as_user(user, group, *command, **options):
    """Starts Python as ``user``, who is in ``group`` too unless it is 0, without capabilities."""
    groups = ("--groups", str(group)) if group else ("--clear-groups",)
    whole = ["setpriv", "--reuid", str(user), "--regid", str(user), *groups, *ALONE, sys.executable, "-c", *command]
    return subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)


@pytest.fixture(autouse=True)
def _users():
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    with as_user(SIDECAR, 0, "import sidecar.cli", stderr=subprocess.DEVNULL) as tried:
        pass
    if tried.returncode:
        pytest.skip("needs a checkout that other users can read")


@pytest.mark.parametrize(("mode", "group"), [(0o777, 0), (0o2770, SHARED_GROUP)])
def test_the_folders_modes_that_are_documented_work(mode, group, folder):
    folder.chmod(0o755)
    shared = folder / "shared"
    shared.mkdir()
    os.chown(shared, 0, group)
    shared.chmod(mode)
    path = shared / "plugin.sock"
    with as_user(SIDECAR, group, RECEIVES, str(path), stdin=subprocess.PIPE) as sidecar:
        assert sidecar.stdout.readline() == "listening\n"
        assert path.stat().st_uid == SIDECAR
        with as_user(VLLM, group, SENDS, str(path), PACKET) as vllm:
            pass
        assert vllm.returncode == 0
        assert [sidecar.stdout.readline() for _ in range(2)] == ["hello\n", "nonetype\n"]
        if group:
            with as_user(VLLM, 0, SENDS, str(path), PACKET, stderr=subprocess.PIPE) as stranger:
                assert "Permission denied" in stranger.communicate()[1]
        sidecar.stdin.close()
        assert sidecar.wait() == 0
