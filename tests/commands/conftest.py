"""What the tests of ``plan`` share."""

import json

import pytest

from tests.commands.commands_tools import command


@pytest.fixture
def model(tmp_path):
    """Writes a model's folder; returns its path."""

    def write(name, config, *, weights=None, tokenizer=None):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if weights is not None:
            (folder / "model.safetensors").write_bytes(b"x" * weights)
        if tokenizer is not None:
            document = {"model": {"vocab": {"a": tokenizer}}}
            (folder / "tokenizer.json").write_text(json.dumps(document))
        return str(folder)

    return write


@pytest.fixture
def planned(capsys):
    """The plan for some arguments, as JSON."""

    def plan(*arguments, code=0):
        assert command("plan", *map(str, arguments), "--json") == code
        return json.loads(capsys.readouterr().out)

    return plan
