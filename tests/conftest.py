"""Fixtures shared by the tests of several parts.

Recorded pages, small servers, and waiting for a condition.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, settings

from tests.waiting import until

# per test with its fixtures; only a broken test takes this long, however busy the machine is
LIMIT_SECONDS = 600
PAGES = Path(__file__).parent / "data" / "pages"

# No deadline, since the time that an example takes says more about the machine than about the code.
# Every run uses the same examples; `make fuzz` looks for new ones.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.load_profile("patient")


def pytest_generate_tests(metafunc):
    """Runs a test that requests ``page_name`` once for each recorded page of a real vLLM."""
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", sorted(path.name for path in PAGES.glob("*.prom")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fails a test that hangs.

    ``@pytest.mark.limit(seconds)`` sets another limit than ``LIMIT_SECONDS``.
    """
    marker = item.get_closest_marker("limit")

    def expired(*_):
        with suppress(RuntimeError):  # no loop is running
            for task in asyncio.all_tasks():
                task.print_stack()
        pytest.fail(f"not finished within {limit} s")

    limit = marker.args[0] if marker else LIMIT_SECONDS
    signal.signal(signal.SIGALRM, expired)
    # repeated, in case a task of the test swallowed the first
    signal.setitimer(signal.ITIMER_REAL, limit, limit)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(autouse=True)
def _nothing_of_the_shell(monkeypatch):
    """Removes the shell's settings, and fixes the terminal's width.

    argparse breaks lines at that width.
    """
    monkeypatch.setenv("COLUMNS", "120")
    for name in [name for name in os.environ if name.startswith("SPECDEC_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def recorded():
    """Returns the body of a recorded page, given its file name."""

    bodies = {
        str(path.relative_to(PAGES)): path.read_bytes()
        for path in PAGES.rglob("*.*")
        if path.suffix != ".json"
    }
    return bodies.__getitem__


@pytest.fixture(scope="session")
def truth():
    """What each recorded page was made from, by file name."""
    return json.loads((PAGES / "TRUTH.json").read_text())


@pytest.fixture
async def http():
    """A client that requests no compression and does not decompress."""
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    ) as session:
        yield session


@pytest.fixture
def folder():
    """A folder whose paths fit into a Unix socket's 107 bytes.

    They do so however long TMPDIR and the test's name are.
    """
    with tempfile.TemporaryDirectory(prefix="specdec", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def socket_path(folder):
    """The path for the plug-in's socket."""
    return folder / "plugin.sock"


@pytest.fixture
def program(socket_path):
    """Starts ``specdec-sidecar`` with arguments and SPECDEC_ variables.

    Kills it if it still runs at the end.

    Each test has its own plug-in socket, since tests run in parallel, and a timeout that suffices
    on any machine.
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
    """Runs ``specdec-sidecar`` until it exits: (exit code, standard output, standard error)."""

    async def run(*arguments, **environment):
        async with program(*arguments, **environment) as process:
            out, err = await process.communicate()
            return process.returncode, out.decode(), err.decode()

    return run


@pytest.fixture
def eventually():
    """Waits until a condition holds: ``tests.waiting.until``."""
    return until


@pytest.fixture
def served():
    """Serves a handler at every path: ``async with served(handler) as base_url``.

    ``port`` 0 means any free port.
    """

    @asynccontextmanager
    async def serve(handler, port=0):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    return serve


@pytest.fixture
def authority(tmp_path):
    """A certificate authority that also writes web configuration files."""
    from tests.http.certificates import Authority

    return Authority(tmp_path)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")
