"""The Dockerfile, as far as it can be checked without building it; scripts/image-check runs the image."""

import json
import re
import subprocess
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from sidecar.cli import parser
from tests.deploy.deploy_tools import ROOT


@pytest.fixture
def lines():
    """The Dockerfile's instructions, one a line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def last(lines, instruction):
    return [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{instruction} ")][-1]


def test_the_base_names_one_release_of_a_supported_python(lines):
    base = next(line for line in lines if line.startswith("ARG BASE="))
    assert re.fullmatch(r"ARG BASE=docker\.io/library/python:3\.1[123]\.\d+-slim-bookworm", base)
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]


def test_it_runs_as_a_number_and_without_a_shell(lines):
    assert all(int(one) > 0 for one in last(lines, "USER").split(":"))
    entry, command = json.loads(last(lines, "ENTRYPOINT")), json.loads(last(lines, "CMD"))
    health = json.loads(last(lines, "HEALTHCHECK").partition("CMD ")[2])
    assert entry == health[:1] == ["specdec-sidecar"]
    for arguments in (command, health[1:]):
        parser(arguments).parse_args(arguments)


def test_everything_from_a_registry_has_a_hash(lines):
    installs = [command for line in lines for command in line.split("&&") if " install " in command]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command)


def test_what_is_copied_gets_past_the_ignore_file(lines):
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in ignored
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    for name in [name for names in copied for name in names]:
        assert f"!{name}" in ignored
        assert (ROOT / name).exists()


def test_the_build_backend_is_locked_with_all_that_it_needs(lines, tmp_path):
    """The Dockerfile's own filter, run on the lock file."""
    [program] = re.findall(r"awk '([^']*)'", "\n".join(lines))
    command = ["awk", program, str(ROOT / "requirements-dev.lock")]
    kept = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^([a-z0-9-]+)==", kept, re.MULTILINE))
    needed = {"hatchling"}
    for text in requires("hatchling"):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"}):
            needed.add(requirement.name)
    assert names == needed
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z])", kept.strip()))
