"""A browser, and where its pictures go."""

from functools import partial
from pathlib import Path

import pytest

from tests.export.page.browser import running_browser


@pytest.fixture
def browser(tmp_path):
    """``async with browser() as tab``."""
    return partial(running_browser, tmp_path / "profile")


def pytest_addoption(parser):
    parser.addoption("--screenshots", type=Path, help="keep the pages' pictures in this folder")


@pytest.fixture
def pictures(request, tmp_path):
    """Where screenshots go."""
    folder = request.config.getoption("--screenshots") or tmp_path
    folder.mkdir(exist_ok=True)
    return folder
