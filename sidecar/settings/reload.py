"""Settings that change while the sidecar runs: on SIGHUP, and when the settings file changes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from sidecar.errors import SettingsError
from sidecar.log import Log
from sidecar.settings.model import Settings
from sidecar.settings.tree import keys
from sidecar.settings.yaml_file import Stamp, stamp


class Reloader:
    """Reloads the settings and applies what can change live: ``thresholds``, ``log.level`` and the web configuration.

    Invalid settings are refused as a whole: the old ones stay in force, and the files are read again until they can be
    used. ``outcomes`` counts both, a refusal once for each reason.
    """

    def __init__(
        self, settings: Settings, load: Callable[[], Settings], log: Log, config: Path | None = None, every: float = 5.0
    ) -> None:
        """``settings`` are in force; ``load`` reloads them, may block and raises SettingsError.

        ``every`` is the seconds between two checks of the file ``config`` and of the web configuration.
        """
        self._settings = settings
        self._load = load
        self._log = log
        self._config = config
        self._every = every
        self._stamp = self._read_stamp()
        self._requested = asyncio.Event()
        self._refusal: list[str] = []
        self.outcomes = {"applied": 0, "refused": 0}

    def request(self) -> None:
        """Reloads soon, whether a file has changed or not."""
        self._requested.set()

    async def run(self, apply: Callable[[Settings], None]) -> None:
        """Runs until cancelled; calls ``apply`` with the settings in force after every reload."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), self._every)
            if self._requested.is_set():
                self._requested.clear()
                self._refusal = []
            elif not self._has_changed():
                continue
            try:
                await self._reload(apply)
            except SettingsError as error:
                self._refuse(error.messages)

    def _has_changed(self) -> bool:
        web = self._settings.web_config_file
        files = {} if web is None else web.files
        return self._read_stamp() != self._stamp or any(stamp(file) != before for file, before in files.items())

    async def _reload(self, apply: Callable[[Settings], None]) -> None:
        found = self._read_stamp()  # before the file is read, so that no change is missed
        loaded = await asyncio.to_thread(self._load)
        old = self._settings
        live = {
            "thresholds": loaded.thresholds,
            "log": old.log.model_copy(update={"level": loaded.log.level}),
            "web_config_file": loaded.web_config_file,
        }
        self._settings, self._stamp, self._refusal = old.model_copy(update=live), found, []
        apply(self._settings)
        self.outcomes["applied"] += 1
        changed = {key: attrgetter(key)(self._settings) for key in _changed(old, self._settings)}
        self._log.info("settings reloaded", changed=changed)
        if waiting := _changed(self._settings, loaded):
            self._log.warning("settings changed that need a restart", settings=waiting)

    def _refuse(self, messages: list[str]) -> None:
        if messages == self._refusal:
            return
        self._refusal = messages
        self.outcomes["refused"] += 1
        for message in messages:
            self._log.error("settings refused; the old ones stay in force", problem=message)

    def _read_stamp(self) -> Stamp:
        return None if self._config is None else stamp(self._config)


def _changed(old: Settings, new: Settings) -> list[str]:
    """The keys of the settings that differ."""
    return [key for key in keys() if attrgetter(key)(old) != attrgetter(key)(new)]
