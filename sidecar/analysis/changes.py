"""Logs what changes about vLLM and its plug-in, never the polls themselves."""

from collections.abc import Callable, Mapping
from typing import Final

from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.analysis.report import PluginReport, PluginState
from sidecar.analysis.state import State
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Log, StateLog

# ``check``, the metric and the page show the others; these affect whether the numbers can be trusted.
_WARNED = (Limitation.V0_COUNTERS, Limitation.DIFFUSION, Limitation.ITL_PER_TOKEN)
_BAD = (PluginState.REFUSED, PluginState.DISABLED, PluginState.OTHER_FORMAT)
_CONNECTS: Final = 10.0  # seconds in which a plug-in that serves requests connects to a new sidecar


class LoggedState:
    """A scrape sink that passes everything to a state and logs what changed."""

    def __init__(self, state: State, log: Log, changes: StateLog, deaf: Callable[[], object] = bool) -> None:
        """``deaf``: whether nobody listens for plug-ins, which whoever cannot listen has logged already."""
        self._state = state
        self._deaf = deaf
        self._log = log
        self._changes = changes
        self._known: Mapping[EngineKey, frozenset[Limitation]] = {}
        self._restarts = 0
        self._overflowed = False
        self._plugin = ""
        self._alone_since: float | None = None  # without a plug-in

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """See ``ScrapeSink``."""
        self._state.scraped(at, duration, interval, page)
        report, limitations = self._state.report(at, with_models=False), self._state.limitations
        self._changes.clear("scrape", "vLLM answers again")
        if report.scrape.vllm_restarts > self._restarts:
            self._restarts = report.scrape.vllm_restarts
            self._log.info("vLLM restarted; counters continue from their last values")
        for key, found in limitations.items():
            self._look_at(key, found)
        self._known = limitations
        if report.scrape.malformed_lines:
            self._changes.fault("malformed", "skipping malformed lines on vLLM's page")
        if report.own.label_overflow["engine"] and not self._overflowed:
            self._overflowed = True
            self._log.warning("more engines than limits.engines; summing the rest as 'other'")
        self._look_at_plugin(at, report.plugin)

    def _look_at_plugin(self, at: float, found: PluginReport) -> None:
        if found.state is not PluginState.NOT_CONNECTED:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = at
        is_early = self._alone_since is not None and at - self._alone_since < _CONNECTS
        if found.text != self._plugin and not is_early and not self._deaf():
            self._plugin = found.text
            tell = self._log.warning if found.state in _BAD else self._log.info
            tell("plug-in", state=str(found.state), meaning=self._plugin)

    def _look_at(self, key: EngineKey, found: frozenset[Limitation]) -> None:
        if key not in self._known:
            self._log.info("found an engine", model=key.model_name, engine=key.engine)
        for limitation in _WARNED:
            if limitation in found - self._known.get(key, frozenset()):
                self._log.warning(EXPLANATIONS[limitation], limitation=str(limitation), engine=key.engine)

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""
        self._state.failed(at, error)
        self._changes.fault("scrape", "cannot read vLLM's page", reason=error.reason, problem=str(error))
