"""Settings that change while the sidecar runs: on SIGHUP, and when the settings file changes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from sidecar.errors import SettingsError
from sidecar.log import Logger
from sidecar.settings.files import Stamp, stamp
from sidecar.settings.groups import Settings, keys


class Reloader:
    """Reloads the settings and applies those that can change while the sidecar runs.

    These are ``thresholds``, ``engine_health``, ``log.level`` and the web configuration. If any
    setting is invalid, all are refused, and the old ones stay in force until a file changes again.
    ``outcomes`` counts the reloads that were applied, and those that were refused. ``invalid`` has
    a line for each problem of the settings as last read.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        log: Logger,
        config: Path | None = None,
        every: float = 5.0,
        *,
        invalid: Sequence[str] = (),
    ) -> None:
        """``settings`` are in force; ``load`` reads them again, may block, raises SettingsError.

        ``invalid`` has the problems of those that have their defaults instead. ``every`` is the
        seconds between two checks of the file ``config`` and of the web configuration. A file that
        has changed is read once two checks in a row find it the same: while it is being written, it
        may look complete.
        """
        self.settings = settings
        self.invalid = tuple(invalid)
        self._load = load
        self._log = log
        self._config = config
        self._every = every
        self._files = _files(settings, {} if config is None else {config: stamp(config)})
        self._requested = asyncio.Event()
        self.outcomes = {"applied": 0, "refused": 0}

    def request(self) -> None:
        """Makes ``run`` reload at once, whether a file has changed or not."""
        self._requested.set()

    async def run(self, apply: Callable[[Settings], None]) -> None:
        """Runs until cancelled; calls ``apply`` with the settings in force after every reload."""
        stamps = self._files
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), self._every)

            # Before they are read, so that no change is missed.
            before = stamps
            stamps = {file: stamp(file) for file in self._files}
            if not self._requested.is_set() and (stamps == self._files or stamps != before):
                continue
            self._requested.clear()
            self._files = stamps

            try:
                loaded = await asyncio.to_thread(self._load)
            except SettingsError as error:
                self.outcomes["refused"] += 1
                self.invalid = tuple(error.messages)
                for message in error.messages:
                    self._log.error("settings refused; keeping the old ones", problem=message)
            else:
                config = {file: stamps[file] for file in stamps if file == self._config}
                self._files = _files(loaded, config)
                self._apply(loaded, apply)

    def _apply(self, loaded: Settings, apply: Callable[[Settings], None]) -> None:
        old = self.settings
        live = {
            "thresholds": loaded.thresholds,
            "engine_health": loaded.engine_health,
            "log": old.log.model_copy(update={"level": loaded.log.level}),
            "web_config_file": loaded.web_config_file,
        }
        self.settings = old.model_copy(update=live)
        apply(self.settings)
        self.outcomes["applied"] += 1
        self.invalid = ()

        changed = {key: attrgetter(key)(self.settings) for key in _changed(old, self.settings)}
        if changed:
            self._log.info("settings reloaded", changed=changed)
        else:
            self._log.info("settings reloaded")

        waiting = _changed(self.settings, loaded)
        if waiting:
            self._log.warning("changed settings need a restart", settings=waiting)


def _files(settings: Settings, config: dict[Path, Stamp]) -> dict[Path, Stamp]:
    """The files to watch, with their stamps from when they were read.

    They are ``config`` and those of the web configuration.
    """
    web = settings.web_config_file
    return config if web is None else config | dict(web.files)


def _changed(old: Settings, new: Settings) -> list[str]:
    """The keys of the settings that differ between the two."""
    return [key for key in keys() if attrgetter(key)(old) != attrgetter(key)(new)]
