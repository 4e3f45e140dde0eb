"""Basic auth: checks a request's credentials without revealing which user names exist."""

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

# Pause after a wrong password, in multiples of the check's duration: guesses get 1/5 of a core.
_REST: Final = 4.0


class Passwords:
    """Checks credentials, one hash at a time.

    A correct password is remembered as a digest, keyed with a secret of this process. So a client
    that sends it with every request never waits for clients that guess.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}  # by name: the digest of the user's hash and password
        self._checks = ThreadPoolExecutor(1)

    async def accepts(self, authorization: str, users: Mapping[str, str]) -> bool:
        """Whether the header ``authorization`` has the password of one of ``users``.

        ``users`` maps names to hashes. A check that is cancelled before it starts is not made.
        """
        user, password = _credentials(authorization)
        if not user:
            return False

        # An unknown name has to take as long as a known one.
        hashed = users.get(user) or next(iter(users.values()))
        digest = hmac.digest(self._key, hashed.encode() + password, "sha256")
        if hmac.compare_digest(self._known.get(user, b""), digest):
            return user in users

        slowest = max(map(_cost, users.values()))
        loop = asyncio.get_running_loop()
        matches = await loop.run_in_executor(self._checks, _is_match, password, hashed, slowest)
        if not matches or user not in users:
            return False

        self._known[user] = digest
        return True


def _credentials(authorization: str) -> tuple[str, bytes]:
    """The user name and password, as in RFC 7617; the name is empty if there are none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", b""

    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return name.decode(), password
    except ValueError:
        return "", b""


def _is_match(password: bytes, hashed: str, slowest: int) -> bool:
    """Whether the password matches the hash.

    A wrong one always takes as long as with a hash of cost ``slowest``, so the time reveals no user
    names.
    """
    import bcrypt  # noqa: PLC0415 - saves memory while basic auth is off, as by default

    began = time.monotonic()
    try:
        matches = bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # over 72 bytes or with a NUL: bcrypt cannot hash it
        matches = False

    if not matches:
        check = time.monotonic() - began
        slowest_check = check * 2 ** (slowest - _cost(hashed))
        time.sleep((_REST + 1) * slowest_check - check)

    return matches


def _cost(hashed: str) -> int:
    """The cost factor of a bcrypt hash: one more doubles the time of a check."""
    _, _, cost, _ = hashed.split("$")
    return int(cost)
