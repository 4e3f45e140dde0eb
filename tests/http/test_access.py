"""Web configurations that change while the server runs."""

import asyncio
import os
import shutil
import threading

import pytest

from sidecar.http import access as access_module
from sidecar.http.access import Access
from sidecar.settings.web_config import read_web_config
from tests.http.certificates import Authority
from tests.http.test_guard import until
from tests.requests.proxy.proxy_doubles import Log


@pytest.fixture
def authority(tmp_path):
    return Authority.new(tmp_path)


def accessed(path):
    log = Log()
    return Access(path, log, look_every=0.0), log


async def test_files_that_appear_after_the_configuration_that_names_them_are_read(authority, tmp_path):
    path = authority.web_config()
    access, log = accessed(path)
    first = await access.tls()
    path.write_text(path.read_text().replace("server.", "new."))
    for _ in range(3):
        assert await access.tls() is first
    for kind in ("certificate", "key"):
        shutil.copy(authority.file(kind, "server"), authority.file(kind, "new"))
    assert await access.tls() is not first
    assert access.outcomes == {"applied": 1, "refused": 1}
    assert [event for event, _ in log.events] == [
        "web configuration refused; the old one stays in force",
        "web configuration reloaded",
        "web configuration usable again",
    ]
    applied = await access.tls()
    assert await access.tls() is applied  # nothing changes any more


async def test_another_reason_is_counted_and_the_old_file_ends_the_refusal(authority):
    path = authority.web_config()
    access, _ = accessed(path)
    usable = path.read_text()
    for number, text in enumerate(("a: b", "a: [", usable), 1):
        path.write_text(text)
        for _ in range(3):
            await access.refresh()
        assert access.outcomes == {"applied": number // 3, "refused": min(number, 2)}


async def test_a_change_is_not_lost_with_the_task_that_found_it(authority, monkeypatch):
    path = authority.web_config()
    access, _ = accessed(path)
    first = await access.tls()
    reading, cancelled, read = threading.Event(), threading.Event(), threading.Event()

    def slow(path):
        reading.set()
        try:
            cancelled.wait(60)
            return read_web_config(path)
        finally:
            read.set()

    monkeypatch.setattr(access_module, "read_web_config", slow)
    os.utime(path, (1, 1))
    task = asyncio.create_task(access.tls())
    await until(reading.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    await until(read.is_set)
    assert await access.tls() is not first
    assert access.outcomes == {"applied": 1, "refused": 0}
