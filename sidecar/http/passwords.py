"""Basic auth against bcrypt hashes, slow to check by design: never on the event loop, never many at a time."""

import asyncio
import base64
import hmac
import secrets
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

_MOST_WAITING: Final = 16
_REST: Final = 4.0  # pause after a wrong password, as a multiple of its check's time: guesses get a fifth of a core


class Verdict(Enum):
    """The outcome of checking a request's credentials."""

    GRANTED = auto()
    WRONG = auto()
    BUSY = auto()  # not checked: its address has a check in progress, or too many others have


class Passwords:
    """Checks credentials; ``users`` maps names to bcrypt hashes and may be replaced at any time.

    A right password is remembered as a digest under a key of this process, so a client that sends it with every
    request is not held up by those that guess. One hash is computed at a time, in a thread, even for an unknown name.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self.users = users
        self._key = secrets.token_bytes(32)
        self._known: dict[str, tuple[str, bytes]] = {}  # by name: the hash that matched, and the password's digest
        self._turn = asyncio.Lock()
        self._waiting: set[str] = set()

    async def check(self, authorization: str, address: str) -> Verdict:
        """``authorization`` is the header, "" if there is none; ``address`` is the client's."""
        user, password = _credentials(authorization)
        if not user:
            return Verdict.WRONG
        # An unknown name costs as much time as a known one.
        hashed = self.users.get(user) or max(self.users.values(), key=lambda one: one[4:6])
        digest = hmac.digest(self._key, password, "sha256")
        known, of = self._known.get(user, ("", b""))
        if known == self.users.get(user) and hmac.compare_digest(of, digest):
            return Verdict.GRANTED
        if address in self._waiting or len(self._waiting) >= _MOST_WAITING:
            return Verdict.BUSY
        self._waiting.add(address)
        try:
            async with self._turn:
                matches = await _matches(password, hashed)
        finally:
            self._waiting.discard(address)
        if not matches or self.users.get(user) != hashed:  # unknown, or changed in the meantime
            return Verdict.WRONG
        self._known = {name: found for name, found in self._known.items() if name in self.users}
        self._known[user] = (hashed, digest)
        return Verdict.GRANTED


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
