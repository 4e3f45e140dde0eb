"""Checks the built distributions as a package index checks them before it takes them.

``scripts/publish`` runs it on a folder that holds one wheel and one source distribution. An index
refuses an upload whose file name and metadata disagree, or whose metadata breaks the standard. It
shows the description as the project's page, so that must be Markdown, and is searched for links
that work only in the repository.
"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from packaging.metadata import Metadata
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

_MARKDOWN: Final = "text/markdown"
# A link's or an image's target without a scheme, which a page elsewhere resolves against itself.
_RELATIVE: Final = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


class Refused(Exception):
    """An index would refuse these distributions; the message says which and why."""


def check(folder: Path, version: str) -> list[Path]:
    """The wheel and the source distribution in a folder, if an index would take them.

    Raises:
        Refused: one is missing, is not of this version, or has metadata that breaks the standard,
            or the two describe different packages.
    """
    wheel = _only(folder, "*.whl")
    sdist = _only(folder, "*.tar.gz")
    wheel_metadata = _wheel_metadata(wheel)
    if wheel_metadata != _sdist_metadata(sdist):
        raise Refused(f"{wheel.name} and {sdist.name} have different metadata")

    metadata = _parsed(wheel, wheel_metadata)
    expected = (canonicalize_name(metadata.name), Version(version))
    for path in (wheel, sdist):
        if _named(path) != expected:
            raise Refused(f"{path.name} is not the file name of {expected[0]} {version}")
    if metadata.version != Version(version):
        raise Refused(f"{wheel.name} says that it is version {metadata.version}, not {version}")
    _check_page(wheel, metadata)
    return [wheel, sdist]


def _check_page(wheel: Path, metadata: Metadata) -> None:
    """As ``twine check`` does: a description that an index can show.

    Raises:
        Refused: there is none, or it is not declared as Markdown.
    """
    if not (metadata.description or "").strip():
        raise Refused(
            f"{wheel.name} has no description, which an index shows as the project's page"
        )
    kind = (metadata.description_content_type or "").partition(";")[0].strip()
    if kind != _MARKDOWN:
        said = kind or "nothing, which means reStructuredText"
        raise Refused(f"{wheel.name} says that its description is {said}, not {_MARKDOWN}")


def relative_links(wheel: Path) -> list[str]:
    """The targets in a wheel's description that lead nowhere on an index's page."""
    description = _parsed(wheel, _wheel_metadata(wheel)).description or ""
    return list(dict.fromkeys(_RELATIVE.findall(description)))


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Refused(f"{folder} must hold exactly one {pattern}, and holds {len(found)}")
    return found[0]


def _wheel_metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise Refused(f"{wheel.name} is damaged at {damaged}")
        return _read(wheel, archive)


def _read(wheel: Path, archive: zipfile.ZipFile) -> bytes:
    for name in archive.namelist():
        if name.endswith(".dist-info/METADATA"):
            return archive.read(name)
    raise Refused(f"{wheel.name} has no METADATA")


def _sdist_metadata(sdist: Path) -> bytes:
    root = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        try:
            member = archive.extractfile(f"{root}/PKG-INFO")
        except KeyError:
            raise Refused(f"{sdist.name} has no {root}/PKG-INFO") from None
        if member is None:
            raise Refused(f"{root}/PKG-INFO in {sdist.name} is not a file")
        return member.read()


def _parsed(wheel: Path, metadata: bytes) -> Metadata:
    try:
        return Metadata.from_email(metadata, validate=True)
    except ExceptionGroup as problems:
        reasons = "; ".join(str(problem) for problem in problems.exceptions)
        raise Refused(f"{wheel.name} has invalid metadata: {reasons}") from None


def _named(path: Path) -> tuple[str, Version]:
    """The name and the version that a file name says."""
    try:
        if path.suffix == ".whl":
            name, version, _build, _tags = parse_wheel_filename(path.name)
        else:
            name, version = parse_sdist_filename(path.name)
    except (InvalidSdistFilename, InvalidWheelFilename) as error:
        raise Refused(str(error)) from None
    return name, version


def main() -> None:
    """Print what is sound, or exit with the reason why it is not."""
    folder, version = sys.argv[1:]
    try:
        checked = check(Path(folder), version)
    except Refused as refused:
        sys.exit(f"distributions-check: {refused}")
    print(f"distributions-check: {' and '.join(path.name for path in checked)} can be uploaded")

    relative = relative_links(checked[0])
    if relative:
        print(
            f"distributions-check: {len(relative)} links of the project's page lead nowhere outside"
            f" the repository, the first one {relative[0]}"
        )


if __name__ == "__main__":
    main()
