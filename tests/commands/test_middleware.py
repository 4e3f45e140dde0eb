import os
import stat
import subprocess
import sys

import pytest

from tests.commands.commands_tools import command


def test_the_file_loads_as_printed_without_this_package(tmp_path, capsys):
    file = tmp_path / "specdec_middleware.py"
    assert command("middleware", "--write", str(file)) == 0
    out = capsys.readouterr().out
    assert f"PYTHONPATH={tmp_path} vllm serve … --middleware specdec_middleware.ObserveRequests" in out
    code = "import sys, specdec_middleware as m; m.ObserveRequests; sys.exit('sidecar' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, cwd="/").returncode == 0


def test_another_user_may_read_it_and_no_other_file_is_left(tmp_path, capsys):
    file = tmp_path / "observe.py"
    file.write_text("old")
    before = os.umask(0o077)
    try:
        assert command("middleware", "--write", str(file)) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [file]
    assert "class ObserveRequests" in file.read_text()


@pytest.mark.parametrize(
    "name",
    ["specdec-middleware.py", "middleware.txt", "class.py", "1st.py", "json.py", "msgspec.py", "vllm.py", "é.py"],
)
def test_a_name_that_does_not_load_or_shadows_a_module_is_refused(tmp_path, capsys, name):
    assert command("middleware", "--write", str(tmp_path / name)) == 2
    assert "write a name such as specdec_middleware.py" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_missing_folder(tmp_path, capsys):
    assert command("middleware", "--write", str(tmp_path / "none" / "observe.py")) == 1
    assert capsys.readouterr().err.endswith("observe.py: No such file or directory\n")
