"""Basic auth: which credentials are accepted, and what guessing costs."""

import asyncio
import base64
import threading

import pytest

from sidecar.http import passwords
from sidecar.http.passwords import Passwords, Verdict
from tests.http.certificates import hashed

USERS = {"prometheus": hashed("secret"), "other": hashed("word")}


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


RIGHT = basic("prometheus", "secret")


async def test_the_right_password_only():
    checker = Passwords(USERS)
    for _ in range(2):  # checked, and remembered
        assert await checker.check(RIGHT, "a") is Verdict.GRANTED
        for header in (
            "", "Basic", "Basic !", "Bearer secret", "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"), basic("prometheus", ""),
            basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert await checker.check(header, "a") is Verdict.WRONG, header


@pytest.mark.parametrize("users", [{"prometheus": hashed("new")}, {"other": USERS["other"]}])
async def test_a_password_is_remembered_until_its_hash_changes(monkeypatch, users):
    checker = Passwords(USERS)
    assert await checker.check(RIGHT, "a") is Verdict.GRANTED
    monkeypatch.setattr(passwords, "_is_match", lambda *_: False)
    assert await checker.check(RIGHT, "b") is Verdict.GRANTED
    checker.users = users
    assert await checker.check(RIGHT, "a") is Verdict.WRONG


async def test_a_hash_that_is_revoked_while_it_is_checked_counts_no_more(monkeypatch):
    checker = Passwords(USERS)

    def revoked(*_):
        checker.users = {"other": USERS["other"]}
        return True

    monkeypatch.setattr(passwords, "_is_match", revoked)
    assert await checker.check(RIGHT, "a") is Verdict.WRONG


@pytest.mark.parametrize("addresses", [["a"] * 100, [f"a{number}" for number in range(100)]])
async def test_a_flood_of_wrong_passwords_is_bounded_and_keeps_nobody_out_that_is_known(monkeypatch, addresses):
    checker = Passwords(USERS)
    assert await checker.check(RIGHT, "p") is Verdict.GRANTED
    go_on, calls = threading.Event(), []

    def slow(password, _):
        calls.append(password)
        assert go_on.wait(60)
        return password == b"secret"

    monkeypatch.setattr(passwords, "_is_match", slow)
    flood = [asyncio.create_task(checker.check(basic("prometheus", str(n)), one)) for n, one in enumerate(addresses)]
    async with asyncio.timeout(60):
        while not calls:
            await asyncio.sleep(0.001)
        assert await checker.check(RIGHT, "p") is Verdict.GRANTED
        assert len(calls) == 1  # at a time
        go_on.set()
        verdicts = await asyncio.gather(*flood)
    checked = min(len(set(addresses)), 16)
    assert verdicts.count(Verdict.WRONG) == checked == len(calls)
    assert verdicts.count(Verdict.BUSY) == 100 - checked
