"""Files that change while the sidecar runs."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from sidecar.settings import load_settings, reload
from sidecar.settings.reload import Reloader
from tests.waiting import until


@asynccontextmanager
async def reloading(load, config=None):
    """A running reloader, the settings that it applied, and what it logged."""
    applied = []
    with capture_logs() as logs:
        reloader = Reloader(load(), load, structlog.get_logger("test"), config, every=0.005)
        task = asyncio.create_task(reloader.run(applied.append))
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
        names = {"web.yaml", "new.certificate.pem", "new.key.pem"}
        assert {file.name for file in applied[0].web_config_file.files} == names
        authority.issue("new")
        await until(lambda: reloader.outcomes["applied"] >= 2)
    reloaded = next(line for line in logs if line["event"] == "settings reloaded")
    assert "new.certificate.pem" in str(reloaded["changed"]["web_config_file"])


async def test_each_invalid_change_is_refused_once_and_the_old_settings_stay_in_force(authority):
    path = authority.web_config()
    texts = ("a: b", "a: [", path.read_text())
    outcomes = (
        {"applied": 0, "refused": 1},
        {"applied": 0, "refused": 2},
        {"applied": 1, "refused": 2},
    )
    async with reloading(loading(path)) as (reloader, applied, logs):
        for text, expected in zip(texts, outcomes, strict=True):
            # By a new file: one that is written twice at once may look the same, as its size and
            # its time do.
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)
            await until(lambda: reloader.outcomes, expected)
            assert len(applied) == expected["applied"]
    assert [line["event"] for line in logs[:2]] == ["settings refused; keeping the old ones"] * 2


@pytest.fixture
def mounted(tmp_path):
    """A ConfigMap's volume as the kubelet writes it.

    It makes a new directory, then swaps one symbolic link.
    """
    versions = iter(range(100))

    def write(text):
        version = tmp_path / f"..{next(versions)}"
        version.mkdir()
        (version / "config.yaml").write_text(text)
        (tmp_path / "..new").symlink_to(version.name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    write("log: {level: warning}")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    write.path = tmp_path / "config.yaml"
    return write


async def test_a_mounted_config_map_is_applied_as_far_as_it_can_be_and_invalid_settings_are_refused(
    mounted,
):
    async with reloading(lambda: load_settings(mounted.path, {}), mounted.path) as (
        reloader,
        applied,
        logs,
    ):
        mounted(
            "thresholds: {acceptance_net_negative: 0.4}\nlog: {level: info}\n"
            "engine_health: {stalled_after: 5m}\nlimits: {series: 5000}"
        )
        await until(lambda: reloader.outcomes, {"applied": 1, "refused": 0})
        mounted("thresholds: {acceptance_net_negative: 0.3, coverage: lots, zebra: 1}")
        await until(lambda: reloader.outcomes["refused"], 1)
        mounted.path.parent.joinpath("..data").unlink()
        await until(lambda: reloader.outcomes["refused"], 2)
        mounted("thresholds: {acceptance_net_negative: 0.45}")
        reloader.request()
        await until(lambda: reloader.outcomes["applied"], 2)
    assert [settings.thresholds.acceptance_net_negative for settings in applied] == [0.4, 0.45]
    reloaded, waiting, *refused = logs[:4]
    assert applied[0].engine_health.stalled_after == 300
    assert reloaded["changed"] == {
        "thresholds.acceptance_net_negative": 0.4,
        "engine_health.stalled_after": 300.0,
        "log.level": "info",
    }
    assert (waiting["event"], waiting["settings"]) == (
        "changed settings need a restart",
        ["limits.series"],
    )
    coverage, zebra = (line["problem"] for line in refused)
    assert coverage.startswith(
        f"thresholds.coverage (in {mounted.path})=lots: input should be a valid number"
    )
    assert zebra == f"thresholds.zebra (in {mounted.path}): unknown setting; correct or remove it"


async def test_a_file_that_is_being_written_is_read_once_it_is_the_same_at_two_checks(monkeypatch):
    changes, left, settings = iter(range(9)), [], load_settings(None, {})
    monkeypatch.setattr(reload, "stamp", lambda _: (next(changes, 9), 0, 0))

    def load():
        left.append(len(list(changes)))
        return settings

    reloader = Reloader(
        settings, load, structlog.get_logger("test"), Path("config.yaml"), every=0.005
    )
    task = asyncio.create_task(reloader.run(lambda _: None))
    await until(lambda: left, [0])
    task.cancel()
