"""What a release publishes is built and checked by one command, which uploads and signs nothing."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from scripts.distributions_check import Refused, check, relative_links
from sidecar import __version__
from tests.deploy.deploy_tools import ROOT

pytestmark = pytest.mark.slow

ENGINES = {"docker", "podman", "buildah"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("distributions")
    command = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def distributions(built, tmp_path):
    """A copy of them that a test may spoil."""
    return shutil.copytree(built, tmp_path / "distributions")


def wheel_of(folder):
    (wheel,) = folder.glob("*.whl")
    return wheel


def sdist_of(folder):
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def change_metadata(folder, old, new):
    """Replace a line of the metadata in both distributions."""
    wheel = wheel_of(folder)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            is_metadata = name.endswith("/METADATA")
            archive.writestr(name, content.replace(old, new) if is_metadata else content)

    sdist = sdist_of(folder)
    with tarfile.open(sdist) as archive:
        files = [(one, archive.extractfile(one).read()) for one in archive if one.isfile()]
    with tarfile.open(sdist, "w:gz") as archive:
        for file, content in files:
            is_metadata = file.name.endswith("/PKG-INFO")
            written = content.replace(old, new) if is_metadata else content
            file.size = len(written)
            archive.addfile(file, io.BytesIO(written))


def test_the_distributions_of_this_checkout_can_be_uploaded(distributions):
    assert check(distributions, __version__) == [wheel_of(distributions), sdist_of(distributions)]


def test_distributions_of_another_version_are_refused(distributions):
    with pytest.raises(Refused, match=r"is not the file name of specdec-sidecar 9\.8\.7"):
        check(distributions, "9.8.7")


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_missing_distribution_is_named(distributions, kind):
    for path in distributions.glob(kind):
        path.unlink()

    with pytest.raises(Refused, match=r"must hold exactly one .* and holds 0"):
        check(distributions, __version__)


def test_metadata_that_breaks_the_standard_is_refused_with_the_reason(distributions):
    change_metadata(distributions, b"Requires-Python: ", b"Requires-Python: about ")

    with pytest.raises(Refused, match=r"invalid metadata: .*requires-python"):
        check(distributions, __version__)


def test_metadata_with_another_version_than_the_file_name_is_refused(distributions):
    version = f"\nVersion: {__version__}\n".encode()
    change_metadata(distributions, version, b"\nVersion: 9.8.7\n")

    with pytest.raises(Refused, match=r"says that it is version 9\.8\.7"):
        check(distributions, __version__)


def test_a_wheel_and_a_source_distribution_that_differ_are_refused(distributions):
    """An index shows the metadata of whichever comes first."""
    wheel = wheel_of(distributions)
    original = wheel.read_bytes()
    change_metadata(distributions, b"Typing :: Typed", b"Framework :: AsyncIO")
    wheel.write_bytes(original)

    with pytest.raises(Refused, match="have different metadata"):
        check(distributions, __version__)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [(b"", "nothing, which means reStructuredText"), (b"text/plain", "text/plain")],
)
def test_a_page_that_an_index_would_not_show_as_markdown_is_refused(
    distributions, declared, reason
):
    line = b"Description-Content-Type: text/markdown\n"
    change_metadata(distributions, line, line.replace(b"text/markdown", declared) * bool(declared))

    with pytest.raises(Refused, match=reason):
        check(distributions, __version__)


def test_a_package_without_a_page_is_refused(distributions):
    """Everything after the headers is the description."""
    wheel = wheel_of(distributions)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        page = archive.read(name).partition(b"\n\n")[2]
    change_metadata(distributions, page, b"")

    with pytest.raises(Refused, match="has no description"):
        check(distributions, __version__)


def test_links_that_work_only_in_the_repository_are_found(distributions):
    """An index resolves them against its own page; absolute ones and anchors work anywhere."""
    wheel = wheel_of(distributions)
    here = relative_links(wheel)
    change_metadata(
        distributions,
        b"](docs/why.md)",
        b"](https://example.com/why.md) and [a part](#part)",
    )

    assert "docs/why.md" in here
    assert set(here) - set(relative_links(wheel)) == {"docs/why.md"}


def publish(*arguments, **environment):
    command = [ROOT / "scripts/publish", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_nothing_is_published_without_a_dry_run(tmp_path):
    """Only a tag publishes."""
    done = publish(OUT=str(tmp_path))

    assert done.returncode == 2
    assert "to publish, push a tag: docs/release.md" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def without_engines(tmp_path):
    """A PATH with every program of this machine but those that build images."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in os.scandir(place) if os.path.isdir(place) else ():  # noqa: PTH112
            link = folder / program.name
            if program.name not in ENGINES and not link.is_symlink():
                link.symlink_to(program.path)
    return str(folder)


@pytest.mark.slow
def test_a_dry_run_builds_all_that_can_be_built_here_and_names_the_rest(tmp_path, without_engines):
    out = tmp_path / "out"
    done = publish("--dry-run", OUT=str(out), PATH=without_engines)

    assert done.returncode == 0, done.stderr
    assert check(out / "python", __version__)
    with tarfile.open(out / "charts" / f"specdec-sidecar-{__version__}.tgz") as chart:
        assert "specdec-sidecar/Chart.yaml" in chart.getnames()
    left_out = done.stdout.partition("Not done, or not here:")[2]
    assert "the image: nothing here can build it" in left_out
    assert "uploads and signatures" in left_out

    sums = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(sums, cwd=out, check=False).returncode == 0
