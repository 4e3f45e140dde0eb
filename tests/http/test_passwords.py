"""Basic auth: which credentials are accepted, and what guessing costs."""

import asyncio
import base64
import threading

import bcrypt
import pytest

from sidecar.http.passwords import Passwords
from tests.http.certificates import hashed

USERS = {"prometheus": hashed("secret"), "other": hashed("word")}


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


RIGHT = basic("prometheus", "secret")


async def test_the_right_password_only():
    passwords = Passwords()
    for _ in range(2):  # checked, and remembered
        assert await passwords.are_right(RIGHT, USERS)
        for header in (
            "", "Basic", "Basic !", "Bearer secret", "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"), basic("prometheus", ""),
            basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert not await passwords.are_right(header, USERS), header


@pytest.mark.parametrize("users", [{"prometheus": hashed("new")}, {"other": USERS["other"]}])
async def test_a_password_is_remembered_until_its_hash_changes(monkeypatch, users):
    passwords = Passwords()
    assert await passwords.are_right(RIGHT, USERS)
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    assert await passwords.are_right(RIGHT, USERS)
    assert not await passwords.are_right(RIGHT, users)


async def test_a_flood_of_wrong_passwords_is_checked_one_by_one_and_keeps_nobody_out_that_is_known(monkeypatch):
    passwords = Passwords()
    assert await passwords.are_right(RIGHT, USERS)
    go_on, calls = threading.Event(), []

    def slow(password, _):
        calls.append(password)
        assert go_on.wait(60)
        return False

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    flood = [asyncio.create_task(passwords.are_right(basic("prometheus", str(n)), USERS)) for n in range(10)]
    async with asyncio.timeout(60):
        while not calls:
            await asyncio.sleep(0.001)
        assert await passwords.are_right(RIGHT, USERS)
        assert len(calls) == 1
        go_on.set()
        assert not any(await asyncio.gather(*flood))
