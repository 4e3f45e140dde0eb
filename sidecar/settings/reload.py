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
from sidecar.settings.yaml_file import Stamp, stamp


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
                await asyncio.wait_for(self._requested.wait(), self._every)
            found = self._read_stamp()  # before the file is read, so that no change is missed
            if found != self._stamp or self._requested.is_set():
                self._stamp = found
                self._requested.clear()
                await self._reload(apply)

    async def _reload(self, apply: Callable[[Settings], None]) -> None:
        try:
            loaded = await asyncio.to_thread(self._load)
        except SettingsError as error:
            self.outcomes["refused"] += 1
            for message in error.messages:
                self._log.error("settings refused; the old ones stay in force", problem=message)
            return
        old = self._settings
        level = old.log.model_copy(update={"level": loaded.log.level})
        self._settings = old.model_copy(update={"thresholds": loaded.thresholds, "log": level})
        apply(self._settings)
        self.outcomes["applied"] += 1
        changed = {key: attrgetter(key)(self._settings) for key in _changed(old, self._settings)}
        self._log.info("settings reloaded", changed=changed)
        if waiting := _changed(self._settings, loaded):
            self._log.warning("settings changed that need a restart", settings=waiting)

    def _read_stamp(self) -> Stamp:
        return None if self._config is None else stamp(self._config)


def _changed(old: Settings, new: Settings) -> list[str]:
    """The keys of the settings that differ."""
    return [leaf.key for leaf in leaves() if attrgetter(leaf.key)(old) != attrgetter(leaf.key)(new)]
