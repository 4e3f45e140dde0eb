"""Basic auth: which credentials are accepted, and what guessing costs."""

import asyncio
import base64
import threading
from collections import Counter as Tally

import bcrypt
import pytest

from sidecar.http.limits import Refusal
from sidecar.http.passwords import Passwords
from tests.http.certificates import hashed
from tests.http.servers import until

USERS = {"prometheus": hashed("secret"), "other": hashed("word")}


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def is_right(passwords, authorization, users=USERS):
    return await passwords.refusal(authorization, users, "10.0.0.1") is None


RIGHT = basic("prometheus", "secret")


async def test_the_right_password_only():
    passwords = Passwords()
    for _ in range(2):  # checked, and remembered
        assert await is_right(passwords, RIGHT)
        for header in (
            "", "Basic", "Basic !", "Bearer secret", "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"), basic("prometheus", ""),
            basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert not await is_right(passwords, header), header


@pytest.mark.parametrize("users", [{"prometheus": hashed("new")}, {"other": USERS["other"]}])
async def test_a_password_is_remembered_until_its_hash_changes(monkeypatch, users):
    passwords = Passwords()
    assert await is_right(passwords, RIGHT)
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    assert await is_right(passwords, RIGHT)
    assert not await is_right(passwords, RIGHT, users)


async def test_a_flood_of_wrong_passwords_is_refused_but_for_one_of_an_address_and_16_of_all(monkeypatch):
    passwords = Passwords()
    assert await is_right(passwords, RIGHT)
    go_on, calls = threading.Event(), []

    def slow(password, _):
        calls.append(password)
        assert go_on.wait(60)
        return False

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    guesses = [
        passwords.refusal(basic("prometheus", f"{n}"), USERS, f"10.0.1.{address}")
        for address in range(20)
        for n in (1, 2)
    ]
    async with asyncio.timeout(60):
        flood = [asyncio.create_task(guess) for guess in guesses]
        await until(lambda: calls and sum(one.done() for one in flood) == 24)
        assert await is_right(passwords, RIGHT)
        assert len(calls) == 1
        go_on.set()
        found = Tally(await asyncio.gather(*flood))
    assert found == {Refusal.UNAUTHORIZED: 16, Refusal.TOO_MANY_PASSWORDS: 24}
