"""Basic auth against bcrypt hashes, slow to check by design: never on the event loop, one at a time."""

import asyncio
import base64
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from sidecar.http.limits import Refusal

_MOST_WAITING: Final = 16
_REST: Final = 4.0  # pause after a wrong password, as a multiple of its check's time: guesses get a fifth of a core


class Passwords:
    """Checks credentials, one hash at a time.

    A right password is remembered as a digest under a key of this process, so a client that sends it with every
    request is not held up by those that guess. An address has one check at a time: aiohttp lets a handler run on when
    its client has left, so the connections bound nothing.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}  # by name: the digest of its hash and its password
        self._turn = asyncio.Lock()
        self._waiting: set[str] = set()  # the addresses whose check is not over

    async def refusal(self, authorization: str, users: Mapping[str, str], address: str) -> Refusal | None:
        """Why a client is refused; None if its password is right.

        ``authorization`` is the header, "" if there is none; ``users`` maps names to hashes.
        """
        user, password = _credentials(authorization)
        if not user:
            return Refusal.UNAUTHORIZED
        hashed = users.get(user) or next(iter(users.values()))  # an unknown name costs as much time as a known one
        digest = hmac.digest(self._key, hashed.encode() + password, "sha256")
        if hmac.compare_digest(self._known.get(user, b""), digest):
            return None if user in users else Refusal.UNAUTHORIZED
        if address in self._waiting or len(self._waiting) >= _MOST_WAITING:
            return Refusal.TOO_MANY_PASSWORDS
        self._waiting.add(address)
        try:
            async with self._turn:
                matches = await _matches(password, hashed) and user in users
        finally:
            self._waiting.discard(address)
        if not matches:
            return Refusal.UNAUTHORIZED
        self._known[user] = digest
        return None


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
