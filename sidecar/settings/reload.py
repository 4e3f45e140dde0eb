"""Settings that change while the sidecar runs: on SIGHUP, and when the settings file changes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from sidecar.errors import SettingsError
from sidecar.log import Log
from sidecar.settings.model import Settings
from sidecar.settings.tree import leaves

_Stamp = tuple[int, int, int] | None


class Reloader:
    """Reloads the settings and applies what can change live: ``thresholds`` and ``log.level``.

    Invalid settings are refused as a whole and the old ones stay in force. ``outcomes`` counts both.
    """

    def __init__(
        self, settings: Settings, load: Callable[[], Settings], log: Log, config: Path | None = None, every: float = 5.0
    ) -> None:
        """``settings`` are in force; ``load`` reloads them, may block and raises SettingsError.

        ``every`` is the seconds between two checks of the file ``config``.
        """
        self._settings = settings
        self._load = load
        self._log = log
        self._config = config
        self._every = every
        self._stamp = self._read_stamp()
        self._requested = asyncio.Event()
        self.outcomes = {"applied": 0, "refused": 0}

    def request(self) -> None:
        """Reloads soon, whether the file has changed or not."""
        self._requested.set()

    async def run(self, apply: Callable[[Settings], None]) -> None:
        """Runs until cancelled; calls ``apply`` with the settings in force after every reload."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._requested.wait()
            stamp = self._read_stamp()
            if stamp == self._stamp and not self._requested.is_set():
                continue
            self._stamp = stamp  # read before the file is, so that no change is missed
            self._requested.clear()
            try:
                loaded = await asyncio.to_thread(self._load)
            except SettingsError as error:
                self.outcomes["refused"] += 1
                for message in error.messages:
                    self._log.error("settings refused; the old ones stay in force", problem=message)
                continue
            before, self._settings = self._settings, _with_live(self._settings, loaded)
            apply(self._settings)
            self.outcomes["applied"] += 1
            changed = {key: attrgetter(key)(self._settings) for key in _changed(before, self._settings)}
            self._log.info("settings reloaded", changed=changed)
            if waiting := _changed(self._settings, loaded):
                self._log.warning("settings changed that need a restart", settings=waiting)

    def _read_stamp(self) -> _Stamp:
        """A stamp that changes with the file, also if a mounted ConfigMap swaps the link to it; None: no file."""
        try:
            found = self._config.stat() if self._config is not None else None
        except OSError:
            return None
        return found and (found.st_ino, found.st_mtime_ns, found.st_size)


def _with_live(old: Settings, new: Settings) -> Settings:
    """The old settings with the new values of those that can change live."""
    log = old.log.model_copy(update={"level": new.log.level})
    return old.model_copy(update={"thresholds": new.thresholds, "log": log})


def _changed(old: Settings, new: Settings) -> list[str]:
    """The keys of the settings that differ."""
    return [leaf.key for leaf in leaves() if attrgetter(leaf.key)(old) != attrgetter(leaf.key)(new)]
