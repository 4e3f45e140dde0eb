"""``specdec-sidecar plugin DIR``, and what vLLM's Python then finds there."""

import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.cli import main
from sidecar.requests import plugin

SCHEDULER = """
class Scheduler:
    def make_spec_decoding_stats(self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens): pass
    def update_from_output(self, scheduler_output, model_runner_output): pass
    def _free_request(self, request{more}): pass
"""


@pytest.fixture
def written(folder, capsys):
    assert main(["plugin", str(folder / "plugin")]) == 0
    return folder / "plugin"


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("mask", [0o077, 0])
def test_any_user_can_read_it_and_no_other_write_it_whatever_the_umask(folder, mask):
    umask = os.umask(mask)
    try:
        assert main(["plugin", str(folder / "a" / "plugin")]) == 0
    finally:
        os.umask(umask)
    made = [folder / "a" / "plugin", *(folder / "a" / "plugin").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o644}


def test_vllm_finds_one_entry_point_there(written):
    (package,) = metadata.distributions(path=[str(written)])
    assert (package.name, package.version) == ("specdec-plugin", __version__)
    (point,) = package.entry_points
    assert (point.group, point.name, point.value) == ("vllm.general_plugins", "specdec", "specdec_plugin:register")


def test_written_again_it_replaces_another_version(written):
    before = names(written)
    (written / "specdec_plugin-0.0.1.dist-info").mkdir()
    (written / "specdec_plugin-0.0.1.dist-info" / "METADATA").write_text("Name: specdec-plugin\nVersion: 0.0.1\n")
    (written / "specdec_plugin.py").write_text("broken")
    assert main(["plugin", str(written)]) == 0
    assert names(written) == before
    assert (written / "specdec_plugin.py").read_bytes() == Path(plugin.__file__).read_bytes()


def test_it_says_what_to_set(written, capsys, monkeypatch):
    monkeypatch.setenv("SPECDEC_PLUGIN__SOCKET", "/shared/s.sock")
    assert main(["plugin", str(written)]) == 0
    out = capsys.readouterr().out
    assert f"PYTHONPATH={written}\n" in out
    assert "SPECDEC_PLUGIN__SOCKET=/shared/s.sock" in out
    assert "VLLM_PLUGINS" in out


def test_a_folder_that_cannot_be_written_is_named(folder, capsys):
    (folder / "file").touch()
    assert main(["plugin", str(folder / "file")]) == 2
    assert str(folder / "file") in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[project]\nname = "mine"\n', "\udcff"])
def test_another_project_s_folder_stays_as_it_is(folder, capsys, text):
    (folder / "pyproject.toml").write_text(text, errors="surrogateescape")
    assert main(["plugin", str(folder)]) == 2
    assert str(folder / "pyproject.toml") in capsys.readouterr().err
    assert names(folder) == ["pyproject.toml"]


def test_it_names_every_file_that_it_wrote(folder, capsys):
    assert main(["plugin", str(folder)]) == 0
    said = [line.removeprefix("wrote ") for line in capsys.readouterr().out.splitlines() if line.startswith("wrote ")]
    assert sorted(said) == [str(folder / name) for name in names(folder)]


def doctor(written, socket_path, *, more="", **environment):
    """What `python -m specdec_doctor` prints beside a vLLM whose _free_request has ``more`` parameters."""
    source = written / "vllm" / "v1" / "core" / "sched"
    source.mkdir(parents=True)
    (written / "vllm" / "__init__.py").touch()
    (source / "scheduler.py").write_text(SCHEDULER.format(more=more))
    environment |= {"PYTHONPATH": str(written), "SPECDEC_PLUGIN__SOCKET": str(socket_path)}
    command = [sys.executable, "-m", "specdec_doctor"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, [line[:4].strip() for line in done.stdout.splitlines()], done.stdout


def test_the_doctor_finds_all_well(written, socket_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        assert doctor(written, socket_path, VLLM_PLUGINS="other,specdec")[:2] == (0, ["ok"] * 4)


def test_the_doctor_finds_everything_wrong(written, socket_path):
    (written / f"specdec_plugin-{__version__}.dist-info" / "entry_points.txt").unlink()
    code, findings, text = doctor(written, socket_path, more=", delay_free_blocks, new", VLLM_PLUGINS="other")
    assert (code, findings) == (1, ["FAIL"] * 4)
    assert "_free_request(self request delay_free_blocks new)" in text
    assert "No such file or directory; start the sidecar" in text
    assert "its value is 'other': add specdec" in text


def test_the_doctor_names_what_it_cannot_look_at(written, folder):
    """No vLLM, one without that scheduler, and a path that no socket can have."""
    environment = os.environ | {"PYTHONPATH": str(written), "SPECDEC_PLUGIN__SOCKET": "/x" * 200, "VLLM_PLUGINS": ""}
    command = [sys.executable, "-m", "specdec_doctor"]
    for problem in ("this Python has no vLLM", "this vLLM is older than 0.9"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert problem in done.stdout
        assert "AF_UNIX path too long; start the sidecar" in done.stdout
        assert "its value is '': add specdec" in done.stdout
        (written / "vllm").mkdir(exist_ok=True)
        (written / "vllm" / "__init__.py").touch()
