"""Logs what changes about one server, never the polls themselves."""

from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.analysis.target_state import TargetState
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Log, StateLog

# ``check``, the metric and the page show the others; these affect whether the numbers can be trusted.
_WARNED = (Limitation.V0_COUNTERS, Limitation.DIFFUSION)


class LoggedTarget:
    """A scrape sink that passes everything to a state and logs what changed."""

    def __init__(self, state: TargetState, log: Log, changes: StateLog) -> None:
        self._state = state
        self._log = log
        self._changes = changes
        self._known: frozenset[EngineKey] = frozenset()
        self._restarts = 0
        self._overflowed = False

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """See ``ScrapeSink``."""
        state = self._state
        state.scraped(at, duration, interval, page)
        self._changes.clear("scrape", "vLLM answers again", target=state.name)
        if state.restarts > self._restarts:
            self._restarts = state.restarts
            self._log.info("vLLM restarted; counters continue from their last values", target=state.name)
        if state.engines.keys() != self._known:
            self._new_engines()
        if state.malformed_lines:
            self._changes.fault("malformed", "skipping malformed lines on vLLM's page", target=state.name)
        if state.overflowed_engines and not self._overflowed:
            self._overflowed = True
            self._log.warning("more engines than limits.engines; summing the rest as 'other'", target=state.name)

    def _new_engines(self) -> None:
        state = self._state
        for key in sorted(state.engines.keys() - self._known):
            self._log.info(
                "found an engine", target=state.name, model=key.model_name, engine=key.engine, vllm=str(state.version)
            )
            for limitation in _WARNED:
                if limitation in state.limitations[key]:
                    self._log.warning(EXPLANATIONS[limitation], target=state.name, limitation=str(limitation))
        self._known = frozenset(state.engines)

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""
        self._state.failed(at, error)
        self._changes.fault(
            "scrape", "cannot read vLLM's page", target=self._state.name, reason=error.reason, problem=str(error)
        )
