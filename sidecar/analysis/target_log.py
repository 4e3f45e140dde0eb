"""What is worth a log line about one server: changes, never the polls themselves."""

from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.analysis.target_state import TargetState
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Log, StateLog

# The others are told by ``check``, the metric and the page; these change what the numbers are worth.
_WARNED = (Limitation.V0_COUNTERS, Limitation.DIFFUSION)


class LoggedTarget:
    """A scrape sink that passes everything on to a state and logs what changed."""

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
        report = state.report(at)
        self._changes.clear("scrape", "vLLM answers again", target=state.name)
        if report.restarts > self._restarts:
            self._restarts = report.restarts
            self._log.info("vLLM restarted; counters go on from where they were", target=state.name)
        known = frozenset(engine.key for engine in report.engines)
        for key in sorted(known - self._known):
            self._log.info(
                "engine found", target=state.name, model=key.model_name, engine=key.engine, vllm=str(report.version)
            )
            for limitation in _WARNED:
                if limitation in report.limitations[key]:
                    self._log.warning(EXPLANATIONS[limitation], target=state.name, limitation=str(limitation))
        self._known = known
        if report.malformed_lines:
            self._changes.fault("malformed", "vLLM's page has broken lines; they are skipped", target=state.name)
        if report.overflowed_engines and not self._overflowed:
            self._overflowed = True
            self._log.warning("more engines than limits.engines; the rest is summed as 'other'", target=state.name)

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""
        self._state.failed(at, error)
        self._changes.fault(
            "scrape", "vLLM's page can't be had", target=self._state.name, reason=error.reason, problem=str(error)
        )
