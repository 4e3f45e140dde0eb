"""Files that change while the sidecar runs; ``tests/commands/test_run_reload.py`` has the settings file."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from structlog.testing import capture_logs

from sidecar.settings import load_settings, reload
from sidecar.settings.reload import Reloader


@asynccontextmanager
async def watched(web_config):
    """A reloader, the web configurations that it applied and what it logged."""

    def load():
        return load_settings(None, {"SPECDEC_WEB_CONFIG_FILE": str(web_config)})

    applied = []
    with capture_logs() as logs:
        reloader = Reloader(load(), load, structlog.get_logger("test"), every=0.005)
        task = asyncio.create_task(reloader.run(lambda settings: applied.append(settings.web_config_file)))
        yield reloader, applied, logs
        task.cancel()


def replace(path, text):
    """By a new file: one that is written twice at once may look the same, as its size and its time do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def test_the_files_that_a_new_web_configuration_names_are_watched(authority, eventually):
    path = authority.web_config()
    async with watched(path) as (reloader, applied, logs):
        authority.issue("new")
        path.write_text(path.read_text().replace("server.", "new."))
        await eventually(lambda: applied)
        assert {file.name for file in applied[0].files} == {"web.yaml", "new.certificate.pem", "new.key.pem"}
        authority.issue("new")
        await eventually(lambda: reloader.outcomes["applied"] >= 2)
    reloaded = next(line for line in logs if line["event"] == "settings reloaded")
    assert "new.certificate.pem" in str(reloaded["changed"]["web_config_file"])


async def test_each_change_is_refused_once_and_the_old_file_ends_the_refusal(authority, eventually):
    path = authority.web_config()
    usable = path.read_text()
    async with watched(path) as (reloader, applied, logs):
        for number, text in enumerate(("a: b", "a: ["), 1):
            replace(path, text)
            await eventually(lambda number=number: reloader.outcomes["refused"] == number)
        assert not applied
        replace(path, usable)
        await eventually(lambda: reloader.outcomes["applied"] == 1)
        assert reloader.outcomes["refused"] == 2
    assert [line["event"] for line in logs[:2]] == ["settings refused; keeping the old ones"] * 2


async def test_a_file_that_is_being_written_is_read_once_it_is_the_same_at_two_checks(monkeypatch, eventually):
    changes, left = iter(range(9)), []
    monkeypatch.setattr(reload, "stamp", lambda _: (next(changes, 9), 0, 0))

    def load():
        left.append(len(list(changes)))
        return settings

    settings = load_settings(None, {})
    reloader = Reloader(settings, load, structlog.get_logger("test"), Path("config.yaml"), every=0.005)
    task = asyncio.create_task(reloader.run(lambda _: None))
    await eventually(lambda: left)
    task.cancel()
    assert left[0] == 0
