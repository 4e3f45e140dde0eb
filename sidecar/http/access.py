"""Who may use the page: TLS and basic auth as a web configuration file requires, kept up to date."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

from sidecar.http.passwords import Passwords
from sidecar.log import Log
from sidecar.settings.web_config import WebConfig, read_web_config
from sidecar.settings.yaml_file import stamp

_LOOK_SECONDS: Final = 5.0


class Access:
    """The web configuration in force; its ``watch`` applies changes of the files.

    A file that cannot be used, or that turns TLS or basic auth on or off, is refused: the old configuration stays in
    force, and the file is read again until it can be used. ``outcomes`` counts both, a refusal once for each reason.
    """

    def __init__(self, path: Path, log: Log) -> None:
        """Reads the file, which blocks.

        Raises:
            ValueError: it cannot be used.
        """
        self._path = path
        self._log = log
        self._config = read_web_config(path)
        self._stamps = [stamp(file) for file in self._config.files]
        self._refusal = ""
        self.passwords = Passwords(self._config.users) if self._config.users else None
        self.outcomes = {"applied": 0, "refused": 0}

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context for a new connection; None without TLS, which never changes."""
        return self._config.tls

    async def watch(self, every: float = _LOOK_SECONDS) -> None:
        """Looks at the files every ``every`` seconds until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                found = await asyncio.to_thread(self._changed)
            except ValueError as error:
                if str(error) != self._refusal:
                    self._refusal = str(error)
                    self.outcomes["refused"] += 1
                    self._log.warning("web configuration refused; the old one stays in force", reason=self._refusal)
                continue
            if found is not None:
                self._config, self._refusal = found, ""
                if self.passwords is not None:
                    self.passwords.users = found.users
                self.outcomes["applied"] += 1
                self._log.info("web configuration reloaded", file=str(self._path))

    def _changed(self) -> WebConfig | None:
        """The new configuration, if a file has changed.

        Raises:
            ValueError: it is refused.
        """
        stamps = [stamp(file) for file in self._config.files]  # before the files are read, so that no change is missed
        if stamps == self._stamps:
            return None
        self._stamps = []
        found = read_web_config(self._path)
        if (found.tls is None) != (self._config.tls is None) or bool(found.users) != bool(self._config.users):
            raise ValueError("turning TLS or basic auth on or off needs a restart")
        self._stamps = stamps if found.files == self._config.files else [stamp(file) for file in found.files]
        return found
