"""The program as users start it: a process with arguments and an environment."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import pytest


@pytest.fixture
def program(socket_path):
    """Starts ``specdec-sidecar`` with arguments and SPECDEC_ variables; kills it if it still runs at the end.

    The plug-in's socket is a test's own, as tests run side by side, and any machine answers within the timeout.
    """

    @asynccontextmanager
    async def start(*arguments, **given):
        own = {"SPECDEC_PLUGIN__SOCKET": str(socket_path), "SPECDEC_SCRAPE_TIMEOUT": "60s"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sidecar", *arguments),
            env=os.environ | own | given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()  # so that no pipe stays open

    return start


@pytest.fixture
def finished(program):
    """Runs ``specdec-sidecar`` to its end: (exit code, standard output, standard error)."""

    async def run(*arguments, **environment):
        async with program(*arguments, **environment) as process:
            out, err = await process.communicate()
            return process.returncode, out.decode(), err.decode()

    return run
