"""Web configurations that change while the server runs."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from sidecar.http.access import Access
from tests.http.certificates import Authority
from tests.http.log_double import Log
from tests.http.servers import until


@pytest.fixture
def authority(tmp_path):
    return Authority.new(tmp_path)


@asynccontextmanager
async def watched(path):
    log = Log()
    access = Access(path, log)
    task = asyncio.create_task(access.watch(every=0.005))
    yield access, log
    task.cancel()


async def test_files_that_appear_after_the_configuration_that_names_them_are_read(authority):
    path = authority.web_config()
    async with watched(path) as (access, log):
        first = access.tls
        path.write_text(path.read_text().replace("server.", "new."))
        await until(lambda: access.outcomes["refused"] == 1)
        assert access.tls is first
        for kind in ("certificate", "key"):
            shutil.copy(authority.file(kind, "server"), authority.file(kind, "new"))
        await until(lambda: access.outcomes["applied"] == 1)
        assert access.tls is not first
        assert [event for event, _ in log.events] == [
            "web configuration refused; the old one stays in force",
            "web configuration reloaded",
        ]


async def test_each_reason_is_counted_once_and_the_old_file_ends_the_refusal(authority):
    path = authority.web_config()
    usable = path.read_text()
    async with watched(path) as (access, log):
        for number, text in enumerate(("a: b", "a: ["), 1):
            path.write_text(text)
            await until(lambda number=number: access.outcomes["refused"] == number)
        path.write_text(usable)
        await until(lambda: access.outcomes["applied"] == 1)
        assert access.outcomes["refused"] == len(log.events) - 1 == 2


async def test_passwords_and_tls_cannot_be_turned_on_or_off(authority):
    path = authority.web_config(users={"a": "b"})
    async with watched(path) as (access, log):
        authority.web_config(users=None)
        await until(lambda: access.outcomes["refused"] == 1)
        assert access.passwords is not None
        assert log.events[0][1] == {"reason": "turning TLS or basic auth on or off needs a restart"}
