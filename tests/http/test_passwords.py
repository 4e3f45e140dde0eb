"""Basic auth: which credentials are accepted."""

import base64
from types import SimpleNamespace

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


async def test_the_time_of_a_wrong_password_does_not_tell_user_names(monkeypatch):
    """By a clock on which a check takes as long as its hash costs."""
    users, now = {"quick": hashed("a", 4), "slow": hashed("b", 7)}, [0.0]

    def advance(seconds):
        now[0] += seconds

    def check(_, found):
        advance(2.0 ** int(found.split(b"$")[2]))
        return False

    monkeypatch.setattr(bcrypt, "checkpw", check)
    monkeypatch.setattr("sidecar.http.passwords.time", SimpleNamespace(monotonic=lambda: now[0], sleep=advance))
    took = []
    for user in ("quick", "slow", "nobody"):
        before = now[0]
        assert not await Passwords().is_right(basic(user, "x"), users)
        took.append(now[0] - before)
    assert took == [5 * 2.0**7] * 3
