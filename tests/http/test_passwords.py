"""Which credentials are accepted, and what a refusal gives away."""

import base64
from types import SimpleNamespace

import bcrypt

from sidecar.http.passwords import Passwords
from tests.http.certificates import hashed
from tests.http.servers import basic

RIGHT = basic("prometheus", "secret")
USERS = {"prometheus": hashed("secret"), "other": hashed("word")}


async def test_only_the_right_password_of_a_user_is_accepted():
    """The second time as well, when the password is remembered."""
    passwords = Passwords()
    for _ in range(2):
        assert await passwords.accepts(RIGHT, USERS)

        for header in (
            "", "Basic", "Basic !", "Bearer secret",
            "Basic " + base64.b64encode(b"\xff:x").decode(),
            basic("prometheus", "word"), basic("nobody", "secret"), basic("", "secret"),
            basic("prometheus", ""), basic("prometheus", "secret\0"), basic("prometheus", "x" * 73),
        ):  # fmt: skip
            assert not await passwords.accepts(header, USERS), header


async def test_a_remembered_password_is_of_no_use_once_its_user_is_gone():
    """The web configuration may be replaced while the sidecar runs."""
    passwords = Passwords()

    assert await passwords.accepts(RIGHT, USERS)

    assert not await passwords.accepts(RIGHT, {"other": USERS["other"]})


async def test_the_time_of_a_wrong_password_does_not_tell_user_names(monkeypatch):
    """By a clock on which a check takes as long as its hash costs."""
    users = {"quick": hashed("a", 4), "slow": hashed("b", 7)}
    now = 0.0

    def advance(seconds):
        nonlocal now
        now += seconds

    def check(_, hashed):
        _, _, cost, _ = hashed.split(b"$")
        advance(2.0 ** int(cost))
        return False

    monkeypatch.setattr(bcrypt, "checkpw", check)
    clock = SimpleNamespace(monotonic=lambda: now, sleep=advance)
    monkeypatch.setattr("sidecar.http.passwords.time", clock)

    took = []
    for user in ("quick", "slow", "nobody"):
        before = now
        assert not await Passwords().accepts(basic(user, "x"), users)
        took.append(now - before)

    assert took == [5 * 2.0**7] * 3
