"""Where a lab is, and which vLLM it holds.

``VERSION`` (default 0.32.0) and ``DEVICE`` (``cpu`` or ``cuda``) say which vLLM, and ``LAB`` in
which folder. Without ``LAB`` the folder is ``specdec-lab/VERSION`` or ``specdec-lab/VERSION-cuda``
in the user's cache; with it, VERSION and DEVICE default to what that folder holds. ``lab/setup``,
``lab/serve``, the tests and the benchmarks all follow this.
"""

import json
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_VERSION: Final = "0.32.0"
ROOT: Final = Path(__file__).resolve().parents[1]
_DEVICES: Final = ("cpu", "cuda")
_RECORD: Final = "ready.json"


class LabError(Exception):
    """Something that the user has to change; the message says what."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder that holds, or is to hold, one vLLM and its models."""

    folder: Path
    version: str
    device: str

    @property
    def venv(self) -> Path:
        """The virtual environment that has vLLM."""
        return self.folder / "venv"

    @property
    def suffix(self) -> Path:
        """The folder with the package that method suffix needs.

        The virtual environment does not have it.
        """
        return self.folder / "suffix"

    @property
    def dynamo(self) -> Path:
        """The folder with NVIDIA Dynamo's packages.

        The virtual environment does not have them either.
        """
        return self.folder / "dynamo"

    def model(self, name: str) -> Path:
        """The folder of a model that ``lab/models.py`` makes."""
        return self.folder / "models" / name

    def is_at_least(self, version: str) -> bool:
        """Whether its vLLM is this release or a later one."""
        return _numbers(self.version) >= _numbers(version)

    @property
    def is_ready(self) -> bool:
        """Whether everything is installed."""
        return _held(self.folder) == (self.version, self.device)

    def set_ready(self, *, ready: bool) -> None:
        """Records that everything is installed, or that it is about to change."""
        record = self.folder / _RECORD
        record.unlink(missing_ok=True)
        if ready:
            record.write_text(json.dumps({"version": self.version, "device": self.device}))


def wanted(environment: Mapping[str, str] = os.environ) -> Installation:
    """The installation that the environment asks for, complete or not.

    Raises:
        LabError: a variable has no usable value, or LAB holds another vLLM.

    """
    named = environment.get("LAB")
    held = _held(Path(named)) if named else None
    version, device = held or (DEFAULT_VERSION, "cpu")
    version = environment.get("VERSION") or version
    device = environment.get("DEVICE") or device

    if not re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?", version):
        raise LabError(
            f"VERSION must be a release of vLLM such as {DEFAULT_VERSION}, not {version!r}"
        )
    if device not in _DEVICES:
        raise LabError(f"DEVICE must be cpu or cuda, not {device!r}")
    if held not in (None, (version, device)):
        raise LabError(
            f"{named} holds another vLLM than {version} for {device}: set LAB to another folder"
        )

    name = version if device == "cpu" else f"{version}-{device}"
    return Installation(
        Path(named).absolute() if named else _cache(environment) / name, version, device
    )


def installed(environment: Mapping[str, str] = os.environ) -> Installation:
    """The installation that the environment asks for.

    Raises:
        LabError: as for ``wanted``, or it is not complete.

    """
    lab = wanted(environment)
    if not lab.is_ready:
        folder = f"LAB={lab.folder} " if environment.get("LAB") else ""
        command = f"{folder}make lab VERSION={lab.version} DEVICE={lab.device}"
        raise LabError(f"{lab.folder} has no complete vLLM {lab.version}: run `{command}`")
    return lab


def _held(folder: Path) -> tuple[str, str] | None:
    """Version and device of the complete installation in a folder."""
    try:
        record = json.loads((folder / _RECORD).read_text())
    except FileNotFoundError:
        return None
    return record["version"], record["device"]


def _cache(environment: Mapping[str, str]) -> Path:
    if cache := environment.get("XDG_CACHE_HOME"):
        return Path(cache, "specdec-lab")
    try:
        home = environment.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise LabError(
            "this user has no home directory: set LAB to a folder on a disk with 10 GB"
        ) from None
    return Path(home, ".cache", "specdec-lab")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
