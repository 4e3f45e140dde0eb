"""``specdec-sidecar plugin DIR``, and what vLLM's Python then finds there."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.cli import main
from sidecar.requests import doctor as doctor_module
from sidecar.requests import plugin

SCHEDULER = """
class Scheduler:
    def make_spec_decoding_stats(
        self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens,
        request_id,
    ): pass
    def update_from_output(self, scheduler_output, model_runner_output): pass
    def _free_request(self, request{more}): pass
"""


@pytest.fixture
def written(folder, capsys):
    assert main(["plugin", str(folder / "plugin")]) == 0
    return folder / "plugin"


def files(folder):
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("mask", [0o077, 0])
def test_any_user_can_read_the_files_and_no_other_write_them_whatever_the_umask(
    folder, mask, capsys
):
    umask = os.umask(mask)
    try:
        assert main(["plugin", str(folder / "a" / "plugin")]) == 0
    finally:
        os.umask(umask)
    made = [folder / "a" / "plugin", *(folder / "a" / "plugin").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o644}
    lines = capsys.readouterr().out.splitlines()
    assert sorted(
        line.removeprefix("wrote ") for line in lines if line.startswith("wrote ")
    ) == files(folder)


def test_vllm_finds_one_entry_point_there(written):
    (package,) = metadata.distributions(path=[str(written)])
    assert (package.name, package.version) == ("specdec-plugin", __version__)
    (point,) = package.entry_points
    assert (point.group, point.name, point.value) == (
        "vllm.general_plugins",
        "specdec",
        "specdec_plugin:register",
    )


def test_writing_again_replaces_another_version(written):
    before = files(written)
    (written / "specdec_plugin-0.0.1.dist-info").mkdir()
    (written / "specdec_plugin-0.0.1.dist-info" / "METADATA").write_text(
        "Name: specdec-plugin\nVersion: 0.0.1\n"
    )
    (written / "specdec_plugin.py").write_text("broken")
    assert main(["plugin", str(written)]) == 0
    assert files(written) == before
    assert (written / "specdec_plugin.py").read_bytes() == Path(plugin.__file__).read_bytes()


def test_the_command_prints_what_to_set(written, capsys, monkeypatch):
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
def test_another_projects_folder_is_left_unchanged(folder, capsys, text):
    (folder / "pyproject.toml").write_text(text, errors="surrogateescape")
    assert main(["plugin", str(folder)]) == 2
    assert str(folder / "pyproject.toml") in capsys.readouterr().err
    assert files(folder) == [str(folder / "pyproject.toml")]


def doctor(written, socket_path, **environment):
    """Runs `python -m specdec_doctor`: its exit code, "ok" or "FAIL" by line, and its output."""
    environment |= {"PYTHONPATH": str(written), "SPECDEC_PLUGIN__SOCKET": str(socket_path)}
    command = [sys.executable, "-m", "specdec_doctor"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    # Other vLLMs may run on this machine, of which there are notes.
    findings = [line[:4].strip() for line in done.stdout.splitlines() if line[:4] != "note"]
    return done.returncode, findings, done.stdout


def add_vllm(written, *, more=", delay_free_blocks=False"):
    """Puts a vLLM beside the plug-in, whose _free_request has ``more`` parameters."""
    source = written / "vllm" / "v1" / "core" / "sched"
    source.mkdir(parents=True)
    (written / "vllm" / "__init__.py").touch()
    (source / "scheduler.py").write_text(SCHEDULER.format(more=more))


def test_the_doctor_reports_that_all_is_well(written, socket_path):
    add_vllm(written)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        assert doctor(written, socket_path, VLLM_PLUGINS="other,specdec")[:2] == (0, ["ok"] * 4)


def test_the_doctor_names_a_vllm_that_runs_with_another_socket_or_without_the_folder(
    written, socket_path
):
    add_vllm(written)
    script = written.parent / "vllm"
    script.write_text("input()")
    environment = {"SPECDEC_PLUGIN__SOCKET": "/other.sock", "PYTHONPATH": "/elsewhere"}
    with (
        stand_in([sys.executable, script, "serve"], environment) as vllm,
        stand_in([sys.executable, "-c", "input()", "vllm", "serve"], environment) as other,
    ):
        text = doctor(written, socket_path)[2]

    process = f"note vLLM's process {vllm.pid}"
    assert f"{process} uses the socket /other.sock, not {socket_path}" in text
    assert f"{process} started without {written} on PYTHONPATH" in text
    assert f"process {other.pid} " not in text


def test_the_doctor_says_that_it_found_no_vllm_to_compare_with(tmp_path):
    """Otherwise its silence would read as if nothing differed."""
    unfound = (
        "found no running vLLM of this user (`vllm serve`, `vllm.entrypoints.*`, `dynamo.vllm`): "
        "its socket and PYTHONPATH were not compared"
    )
    editor, worker = tmp_path / "7", tmp_path / "10"
    for process, command in ((editor, b"vim\0vllm\0"), (worker, b"python3\0-m\0dynamo.vllm\0")):
        process.mkdir()
        (process / "cmdline").write_bytes(command)
    (editor / "environ").touch()

    # The variables of another user's process cannot be read; here they are missing.
    assert doctor_module.differences("/run/a.sock", tmp_path) == [unfound]

    (worker / "environ").write_bytes(b"SPECDEC_PLUGIN__SOCKET=/run/b.sock\0")
    assert doctor_module.differences("/run/a.sock", tmp_path) == [
        "vLLM's process 10 uses the socket /run/b.sock, not /run/a.sock"
    ]


@contextmanager
def stand_in(command, environment):
    """A process with this command line that waits."""
    with subprocess.Popen(command, env=os.environ | environment, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()
        process.kill()


@pytest.mark.parametrize(
    ("command", "is_vllm"),
    [
        ("/opt/venv/bin/python3.12 /opt/venv/bin/vllm serve model", True),
        ("python3 -u -X dev -m vllm.entrypoints.openai.api_server --model m", True),
        ("python -m vllm.entrypoints.cli.main serve m", True),
        ("python3 -m vllm serve m", True),
        ("vllm run-batch -i in -o out", True),
        ("python3 -m dynamo.vllm --model m", True),
        ("/usr/bin/python3 -um dynamo.vllm.main --model m", True),
        ("python3 -mvllm.entrypoints.openai.api_server --model m", True),
        ("python3 -Xdev -W ignore -mvllm serve m", True),
        ("python3 --check-hash-based-pycs=never -m dynamo.vllm", True),
        ("python3 /opt/venv/lib/vllm/entrypoints/openai/api_server.py --model m", True),
        ("python3 vllm/entrypoints/cli/main.py serve m", True),
        ("python3 /opt/dynamo/vllm/main.py --model m", True),
        ("python3 /opt/venv/lib/vllm/entrypoints/cli/main.py bench serve", False),
        ("python3 /opt/notvllm/entrypoints/openai/api_server.py", False),
        ("vim /opt/vllm/entrypoints/openai/api_server.py", False),
        ("python3 -m dynamo.frontend", False),
        ("python3 -mpytest vllm.entrypoints.openai", False),
        ("VLLM::EngineCore    ", False),
        ("vllm bench serve --base-url http://other:8000", False),
        ("python3 /opt/venv/bin/vllm chat", False),
        ("vim vllm.txt", False),
        ("grep -r vllm /etc", False),
        ("tail -f /var/log/vllm serve.log", False),
        ("bash -c vllm serve", False),
        ("python3 -c pass vllm serve", False),
        ("python3 train.py --log vllm", False),
        ("python3 -m pytest tests/vllm", False),
        ("python3 -m", False),
        ("python3", False),
        ("", False),
    ],
)
def test_what_runs_a_vllm_is_known_by_its_program_not_by_a_word_in_its_command(command, is_vllm):
    assert doctor_module.is_vllm(command.split(" ")) == is_vllm


def test_the_doctor_reports_everything_that_is_wrong(written, socket_path):
    add_vllm(written, more=", delay_free_blocks=False, new=None")
    (written / f"specdec_plugin-{__version__}.dist-info" / "entry_points.txt").unlink()
    code, findings, text = doctor(written, socket_path, VLLM_PLUGINS="other")
    assert (code, findings) == (1, ["FAIL"] * 4)
    assert "_free_request(self request delay_free_blocks new)" in text
    assert "No such file or directory; start the sidecar" in text
    assert "its value is 'other': add specdec" in text


def test_the_doctor_refuses_a_vllm_before_0_16(written, socket_path):
    """As the plug-in does, which would say so only once it serves."""
    add_vllm(written, more="")
    code, _, text = doctor(written, socket_path)
    assert code == 1
    assert "FAIL it knows vLLM's Scheduler: no; " in text
    assert "_free_request(self request)" in text
    assert "0.16" in text


def test_the_doctor_names_what_it_cannot_examine(written):
    """No vLLM, one without that scheduler, and a path that no socket can have."""
    for problem in ("this Python has no vLLM", "this vLLM is older than 0.16"):
        code, _, text = doctor(written, "/x" * 200, VLLM_PLUGINS="")
        assert code == 1
        for line in (
            problem,
            "AF_UNIX path too long; start the sidecar",
            "its value is '': add specdec",
        ):
            assert line in text
        (written / "vllm").mkdir(exist_ok=True)
        (written / "vllm" / "__init__.py").touch()
