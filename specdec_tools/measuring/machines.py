"""Whether two servers run on one machine, whose slow minutes then meet both alike."""

import shutil
import socket
import subprocess
from typing import Final
from urllib.parse import urlsplit

TWO_MACHINES: Final = 0.042
"""By what share two machines may differ (95 %): each has a speed of its own (sd 1.5 %)."""
SWAPPED: Final = 0.015
"""What is left of that after the servers were swapped: machines also wander (1 % a round)."""
_SECONDS: Final = 10.0  # for nvidia-smi


def are_one_machine(url: str, other: str) -> bool:
    """Whether both are at this host, and both use its one GPU.

    Anything else may be two machines: another host's GPUs cannot be seen from here, and a forwarded
    port of this one leads anywhere.
    """
    hosts = {urlsplit(one).hostname or "" for one in (url, other)}
    if not all(map(_is_here, hosts)):
        return False
    return _is_one_gpu(_gpu_processes())


def _is_here(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}


def _gpu_processes() -> str:
    """The GPU's uuid and the id of each process that computes on one; empty without GPUs."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [command, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _is_one_gpu(processes: str) -> bool:
    """Whether two processes or more compute, all on one GPU."""
    rows = [line.split(",") for line in processes.splitlines() if "," in line]
    uuids = {uuid.strip() for uuid, *_ in rows}
    return len(uuids) == 1 and len(rows) > 1
