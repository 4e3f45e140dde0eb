from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings import load_settings


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a YAML file into the working directory; its path there is what messages name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="config.yaml"):
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return Path(name)

    return write


@pytest.fixture
def messages():
    """The messages for a file and an environment that are invalid."""

    def load(path, environ):
        with pytest.raises(SettingsError) as caught:
            load_settings(path, environ)
        return caught.value.messages

    return load
