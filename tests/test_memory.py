"""What a running sidecar does not load, since it would be memory for nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.certificates import Authority

ROOT = Path(__file__).parents[1]
STARTED = """
import os, sys
from sidecar.memory import sparing
with sparing():
    import sidecar.commands.run
from aiohttp import connector
from sidecar.tls import verifying

print(connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"])
print(verifying().cert_store_stats()["x509"])
print(os.environ.get("SSL_CERT_FILE"))
print(*sys.modules)
"""


def started(**environment):
    """The certificates of aiohttp and of our own clients, the variable for them, the modules."""
    base = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, "-c", STARTED],
        env=base | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    aiohttps, ours, variable, modules = done.stdout.splitlines()
    return int(aiohttps), int(ours), variable, set(modules.split())


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_certificates_are_loaded_by_the_clients_that_verify_and_once_for_each(given, tmp_path):
    """Whatever file of them the environment names."""
    authority = Authority(tmp_path)
    environment = {"SSL_CERT_FILE": str(authority.certificate)} if given else {}
    aiohttps, ours, variable, _ = started(**environment)

    assert aiohttps == 0
    assert variable == environment.get("SSL_CERT_FILE", "None")
    assert ours == 1 or not given


BY_COMMAND = """
import sys
from contextlib import suppress
from sidecar.cli import main
with suppress(SystemExit):
    main(["{}", "--help"])
from aiohttp import connector
certificates = connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"]
sys.exit(certificates + ("frozenlist._frozenlist" in sys.modules))
"""


@pytest.mark.parametrize("name", ["run", "report"])
def test_a_command_loads_what_it_needs_of_aiohttp_and_no_more(name):
    ended = subprocess.run(
        [sys.executable, "-c", BY_COMMAND.format(name)], capture_output=True, check=False
    )
    assert ended.returncode == 0, ended


def test_the_runtime_of_cxx_is_not_loaded_for_a_list():
    *_, modules = started()
    assert {"frozenlist", "aiosignal"} <= modules
    assert "frozenlist._frozenlist" not in modules


def test_nothing_of_the_tools_is_loaded_nor_named():
    *_, modules = started()
    assert [name for name in modules if name.startswith("specdec_tools")] == []

    sources = [*(ROOT / "sidecar").rglob("*.py")]
    assert len(sources) > 150
    assert [path for path in sources if "import specdec_tools" in path.read_text()] == []
    assert [path for path in sources if "from specdec_tools" in path.read_text()] == []
