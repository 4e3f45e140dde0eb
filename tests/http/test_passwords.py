"""Basic auth: which credentials are accepted."""

import base64
from types import SimpleNamespace

import bcrypt

from sidecar.http.guard import Passwords
from tests.http.certificates import hashed
from tests.http.servers import basic

USERS = {"prometheus": hashed("secret"), "other": hashed("word")}


RIGHT = basic("prometheus", "secret")


async def test_only_the_right_password_of_a_user_is_accepted():
    passwords = Passwords()
    for _ in range(2):  # checked, and remembered
        assert not await passwords.is_right(RIGHT, {"other": USERS["other"]})  # the user is no longer there
        assert await passwords.is_right(RIGHT, USERS)
        for header in (
            "", "Basic", "Basic !", "Bearer secret", "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"), basic("prometheus", ""),
            basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert not await passwords.is_right(header, USERS), header


async def test_the_time_of_a_wrong_password_does_not_tell_user_names(monkeypatch):
    """By a clock on which a check takes as long as its hash costs."""
    users, now = {"quick": hashed("a", 4), "slow": hashed("b", 7)}, [0.0]

    def advance(seconds):
        now[0] += seconds

    def check(_, hashed):
        advance(2.0 ** int(hashed.split(b"$")[2]))
        return False

    monkeypatch.setattr(bcrypt, "checkpw", check)
    monkeypatch.setattr("sidecar.http.guard.time", SimpleNamespace(monotonic=lambda: now[0], sleep=advance))
    took = []
    for user in ("quick", "slow", "nobody"):
        before = now[0]
        assert not await Passwords().is_right(basic(user, "x"), users)
        took.append(now[0] - before)
    assert took == [5 * 2.0**7] * 3
