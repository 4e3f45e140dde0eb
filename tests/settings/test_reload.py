"""Files that change while the sidecar runs; ``tests/commands/test_run.py`` has the settings file."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from structlog.testing import capture_logs

from sidecar.settings import load_settings, reload
from sidecar.settings.reload import Reloader
from tests.waiting import until


@asynccontextmanager
async def reloading(load, config=None):
    """A running reloader, the web configurations that it applied, and what it logged."""
    applied = []
    with capture_logs() as logs:
        reloader = Reloader(load(), load, structlog.get_logger("test"), config, every=0.005)
        task = asyncio.create_task(reloader.run(lambda settings: applied.append(settings.web_config_file)))
        yield reloader, applied, logs
        task.cancel()


def loading(web_config):
    return lambda: load_settings(None, {"SPECDEC_WEB_CONFIG_FILE": str(web_config)})


async def test_certificates_that_a_new_web_configuration_names_are_watched(authority):
    path = authority.web_config()
    async with reloading(loading(path)) as (reloader, applied, logs):
        authority.issue("new")
        path.write_text(path.read_text().replace("server.", "new."))
        await until(lambda: len(applied), 1)
        assert {file.name for file in applied[0].files} == {"web.yaml", "new.certificate.pem", "new.key.pem"}
        authority.issue("new")
        await until(lambda: reloader.outcomes["applied"] >= 2)
    reloaded = next(line for line in logs if line["event"] == "settings reloaded")
    assert "new.certificate.pem" in str(reloaded["changed"]["web_config_file"])


async def test_each_invalid_change_is_refused_once_and_the_old_settings_stay_in_force(authority):
    path = authority.web_config()
    texts = ("a: b", "a: [", path.read_text())
    outcomes = ({"applied": 0, "refused": 1}, {"applied": 0, "refused": 2}, {"applied": 1, "refused": 2})
    async with reloading(loading(path)) as (reloader, applied, logs):
        for text, expected in zip(texts, outcomes, strict=True):
            # By a new file: one that is written twice at once may look the same, as its size and its time do.
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)
            await until(lambda: reloader.outcomes, expected)
            assert len(applied) == expected["applied"]
    assert [line["event"] for line in logs[:2]] == ["settings refused; keeping the old ones"] * 2


async def test_a_file_that_is_being_written_is_read_once_it_is_the_same_at_two_checks(monkeypatch):
    changes, left, settings = iter(range(9)), [], load_settings(None, {})
    monkeypatch.setattr(reload, "stamp", lambda _: (next(changes, 9), 0, 0))

    def load():
        left.append(len(list(changes)))
        return settings

    reloader = Reloader(settings, load, structlog.get_logger("test"), Path("config.yaml"), every=0.005)
    task = asyncio.create_task(reloader.run(lambda _: None))
    await until(lambda: left, [0])
    task.cancel()
