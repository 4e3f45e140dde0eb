"""Requests to the kernel: limits on open files, probes for vanished peers."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.requests.proxy.proxy_tools import GET, answering, proxied


async def test_the_kernel_probes_for_vanished_peers_within_minutes():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        for column, port in ((1, proxy.port), (2, server.port)):  # the client's connection, and the upstream's
            ours = [row for row in rows if int(row[column].partition(":")[2], 16) == port and row[3] == "01"]
            ((kind, _, left),) = [row[5].partition(":") for row in ours]
            assert kind == "02"  # keep-alive
            assert int(left, 16) / os.sysconf("SC_CLK_TCK") <= 60


async def test_soft_limit_on_open_files_is_raised_for_the_connections_allowed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        async with proxied(answering, max_connections=400):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 800
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_low_a_hard_limit_on_open_files_is_logged_once():
    code = (
        "import resource, structlog; from sidecar.requests.proxy.sockets import allow_descriptors;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 700));"
        "print(allow_descriptors(1000, structlog.get_logger()), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("limit on open files is too low") == 1
    assert done.stdout.endswith("222 (700, 700)\n")  # two descriptors for each, and 256 to spare
