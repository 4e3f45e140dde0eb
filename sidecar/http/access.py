"""Who may use a server: TLS and basic auth as a web configuration file requires, kept up to date."""

import asyncio
import ssl
import time
from pathlib import Path
from typing import Final

from sidecar.http.passwords import Passwords
from sidecar.log import Log, StateLog
from sidecar.settings.web_config import WebConfig, read_web_config

_LOOK_SECONDS: Final = 5.0

_Stamps = tuple[tuple[int, int, int] | None, ...]


class Access:
    """One server's web configuration.

    Before a handshake or a request uses it, it is read again if one of its files has changed, at most every
    ``look_every`` seconds. A file that cannot be used, or that turns TLS or basic auth on or off, is refused: the old
    configuration stays in force, and each look reads again. ``outcomes`` counts both, a refusal once for each reason.
    """

    def __init__(self, path: Path, log: Log, look_every: float = _LOOK_SECONDS) -> None:
        """Reads the file, which blocks.

        Raises:
            ValueError: it cannot be used.
        """
        self._path = path
        self._log = log
        self._faults = StateLog(log)
        self._look_every = look_every
        self._config = read_web_config(path)
        self._stamps: _Stamps | None = _stamps(self._config)  # None: to be read again
        self._refusal = ""
        self._looked_at = time.monotonic()
        self.passwords = Passwords(self._config.users) if self._config.users else None
        self.outcomes = {"applied": 0, "refused": 0}

    @property
    def has_tls(self) -> bool:
        """Whether the server speaks TLS; never changes."""
        return self._config.tls is not None

    async def tls(self) -> ssl.SSLContext | None:
        """The context for a new connection; None without TLS."""
        await self.refresh()
        return self._config.tls

    async def refresh(self) -> None:
        """Applies what has changed in the files."""
        if time.monotonic() - self._looked_at < self._look_every:
            return
        self._looked_at = time.monotonic()
        # Applied here, not in the thread: a task that is cancelled while it waits must leave the change to the next.
        stamps, found = await asyncio.to_thread(self._look)
        self._stamps = stamps
        if isinstance(found, WebConfig):
            self._config = found
            if self.passwords is not None:
                self.passwords.users = found.users
            self.outcomes["applied"] += 1
            self._refusal = ""
            self._log.info("web configuration reloaded", file=str(self._path))
            self._faults.clear("file", "web configuration usable again")
        elif found not in {"", self._refusal}:
            self.outcomes["refused"] += 1
            self._refusal = found
            self._faults.fault("file", "web configuration refused; the old one stays in force", reason=found)

    def _look(self) -> tuple[_Stamps | None, WebConfig | str]:
        """The files' stamps and the new configuration, or why it is refused; empty if no file has changed."""
        stamps = _stamps(self._config)  # read before the files are, so that no change is missed
        if stamps == self._stamps:
            return stamps, ""
        try:
            found = read_web_config(self._path)
        except ValueError as error:
            return None, str(error)
        if (found.tls is None) != (self._config.tls is None) or bool(found.users) != bool(self._config.users):
            return None, "turning TLS or basic auth on or off needs a restart"
        return stamps if found.files == self._config.files else _stamps(found), found


def _stamps(config: WebConfig) -> _Stamps:
    """A stamp that changes with the files, also if a mounted Secret swaps the symbolic links to them."""
    found: list[tuple[int, int, int] | None] = []
    for path in config.files:
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
