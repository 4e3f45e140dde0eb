"""Logs what changes about vLLM and its plug-in, never the polls themselves."""

from sidecar.analysis.split.plugin_state import BAD
from sidecar.analysis.state import State
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Logger, StateLog
from sidecar.settings.baselines import Measured
from sidecar.wording.plugin import plugin_sentence


class LoggedState:
    """A scrape sink that passes everything to a state and logs what changed."""

    def __init__(self, state: State, log: Logger, changes: StateLog, measured: Measured) -> None:
        self._state = state
        self._measured = measured
        self._log = log
        self._changes = changes
        self._known: set[EngineKey] = set()  # on the last page
        self._restarts = 0
        self._plugin = ""

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """See ``ScrapeSink``."""
        self._state.scraped(at, duration, interval, page)
        if self._state.last_error is not None:
            self._log_failure(self._state.last_error)
            return

        self._changes.clear("scrape", "vLLM responds again")
        if self._state.restarts > self._restarts:
            self._restarts = self._state.restarts
            self._log.info("vLLM restarted; its counters start again at 0")

        present = {engine.key for engine in page.engines}
        for model, engine in sorted(present - self._known):
            self._log.info("engine found", model=model, engine=engine)
            self._log_baseline(model)

        self._known = present
        plugin = self._state.plugin.report("", as_of_poll=True)
        meaning = plugin_sentence(plugin)
        if plugin.heard and meaning != self._plugin:
            self._plugin = meaning
            tell = self._log.warning if plugin.state in BAD else self._log.info
            tell("plug-in", state=str(plugin.state), meaning=meaning)

    def _log_baseline(self, model: str) -> None:
        """Says if the baseline is of other models."""
        if others := self._measured.others(model):
            self._changes.fault(
                "baseline", "the baseline is of other models", model=model, measured=others
            )

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""
        self._state.failed(at, error)
        self._log_failure(error)

    def _log_failure(self, error: ScrapeError) -> None:
        self._changes.fault(
            "scrape", "cannot read vLLM's metrics", reason=error.reason, problem=str(error)
        )
