"""Basic auth: which credentials are accepted."""

import base64

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
        assert await passwords.is_right(RIGHT, USERS)
        for header in (
            "", "Basic", "Basic !", "Bearer secret", "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"), basic("prometheus", ""),
            basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert not await passwords.is_right(header, USERS), header


@pytest.mark.parametrize("users", [{"prometheus": hashed("new")}, {"other": USERS["other"]}])
async def test_a_password_is_remembered_until_its_hash_changes(monkeypatch, users):
    passwords = Passwords()
    assert await passwords.is_right(RIGHT, USERS)
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    assert await passwords.is_right(RIGHT, USERS)
    assert not await passwords.is_right(RIGHT, users)
