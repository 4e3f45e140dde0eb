"""The program as users start it: a process with arguments and an environment."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import pytest


@pytest.fixture
def program(socket_path):
    """Starts ``specdec-sidecar`` with arguments and SPECDEC_ variables; kills it if it still runs at the end.

    The plug-in's socket is a test's own: tests run side by side.
    """

    @asynccontextmanager
    async def start(*arguments, **given):
        environment = {"SPECDEC_PLUGIN__SOCKET": str(socket_path), **given}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sidecar", *arguments),
            env=os.environ | environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return start


@pytest.fixture
def finished(program):
    """Runs ``specdec-sidecar`` to its end: (exit code, standard output, standard error)."""

    async def run(*arguments, **environment):
        async with program(*arguments, **environment) as process, asyncio.timeout(240):
            out, err = await process.communicate()
            return process.returncode, out.decode(), err.decode()

    return run
