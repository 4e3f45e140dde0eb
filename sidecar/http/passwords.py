"""Basic auth against bcrypt hashes, slow to check by design: never on the event loop, one at a time."""

import asyncio
import base64
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

_REST: Final = 4.0  # pause after a wrong password, as a multiple of its check's time: guesses get a fifth of a core


class Passwords:
    """Checks credentials, one hash at a time.

    A right password is remembered as a digest under a key of this process, so a client that sends it with every
    request is not held up by those that guess.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}  # by name: the digest of its hash and its password
        self._turn = asyncio.Lock()

    async def are_right(self, authorization: str, users: Mapping[str, str]) -> bool:
        """``authorization`` is the header, "" if there is none; ``users`` maps names to hashes."""
        user, password = _credentials(authorization)
        if not user:
            return False
        hashed = users.get(user) or next(iter(users.values()))  # an unknown name costs as much time as a known one
        digest = hmac.digest(self._key, hashed.encode() + password, "sha256")
        if hmac.compare_digest(self._known.get(user, b""), digest):
            return user in users
        async with self._turn:
            matches = await _matches(password, hashed) and user in users
        if matches:
            self._known[user] = digest
        return matches


async def _matches(password: bytes, hashed: str) -> bool:
    clock = asyncio.get_running_loop().time
    began = clock()
    matches = await asyncio.to_thread(_is_match, password, hashed)
    if not matches:
        await asyncio.sleep(_REST * (clock() - began))
    return matches


def _is_match(password: bytes, hashed: str) -> bool:
    import bcrypt  # noqa: PLC0415 - off by default; saves its memory

    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # over 72 bytes, or with a NUL: no password that bcrypt can hash
        return False


def _credentials(authorization: str) -> tuple[str, bytes]:
    """The name and the password of RFC 7617; an empty name if there are none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if scheme.lower() == "basic" else ("", b"")
    except ValueError:
        return "", b""
