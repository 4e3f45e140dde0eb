"""The Dockerfile, as far as it can be checked without building it; scripts/image-check runs the image."""

import json
import re

from sidecar.cli import parser
from tests.deploy.deploy_tools import ROOT

TEXT = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line.strip()]  # an instruction each


def last(instruction):
    return [line.partition(" ")[2].strip() for line in LINES if line.startswith(f"{instruction} ")][-1]


def test_the_base_names_one_release_of_a_supported_python():
    base = next(line for line in LINES if line.startswith("ARG BASE="))
    assert re.fullmatch(r"ARG BASE=docker\.io/library/python:3\.1[123]\.\d+-slim-bookworm", base)
    assert [line for line in LINES if line.startswith("FROM ")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]


def test_it_runs_as_a_number_and_without_a_shell():
    assert all(int(number) > 0 for number in last("USER").split(":"))
    entry, command = json.loads(last("ENTRYPOINT")), json.loads(last("CMD"))
    health = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert entry == health[:1] == ["specdec-sidecar"]
    for arguments in (command, health[1:]):
        parser(arguments).parse_args(arguments)


def test_everything_from_a_registry_has_a_hash():
    installs = [command for line in LINES for command in line.split("&&") if " install " in command]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command)
