"""The state of one vLLM server: every engine on its page, its requests, and the scraping itself."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sidecar.analysis.acceptance import Acceptance, over_engines
from sidecar.analysis.engine_state import EngineReport, EngineState, Lookback
from sidecar.analysis.engines import Engines, is_another
from sidecar.analysis.limitation import Limitation, limitations
from sidecar.analysis.request_state import RequestReport, RequestState
from sidecar.analysis.speed_state import LoadTotals, ModelSpeed, SpeedOptions, SpeedState, TemperatureSpeed
from sidecar.analysis.speedup import EngineSpeed
from sidecar.analysis.verdict import Estimate, Evidence, Judge, ModelEvidence, ModelJudgement, VerdictThresholds
from sidecar.engine.merge import OTHER
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import ScrapeError

_FRESH_INTERVALS = 2  # number of intervals for which a poll's data are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """One server at one moment.

    ``last_scrape`` is the Unix time of the last successful poll; None before the first. ``interval`` is the current
    interval between two polls, ``duration`` that of the last successful one: seconds.
    """

    name: str
    up: bool
    last_scrape: float | None
    duration: float | None
    interval: float
    errors: Mapping[str, int]  # failed polls, by ScrapeError.reason
    last_error: ScrapeError | None  # None while up
    malformed_lines: int
    restarts: int
    overflowed_engines: int  # engines that became "other", poll by poll
    overflowed_positions: int  # draft positions that became "other", poll by poll
    version: VersionFamily
    engines: tuple[EngineReport, ...]
    limitations: Mapping[EngineKey, frozenset[Limitation]]  # empty while not up
    requests: RequestReport | None  # None without a request source
    judgements: tuple[ModelJudgement, ...]  # one per model, as of the last poll; empty while not up
    speeds: Mapping[str, ModelSpeed]  # by model that speculates, as of the last poll; empty while not up
    engine_speeds: Mapping[EngineKey, EngineSpeed]  # the same by engine
    loads: Mapping[EngineKey, Mapping[str, LoadTotals]]  # what was decoded at each load, since the start
    balances: Mapping[str, Mapping[str, TemperatureSpeed]]  # by model and temperature, since the start


class TargetState:
    """A scrape sink: keeps what one server's pages say; bounded in engines and in time."""

    def __init__(
        self,
        name: str,
        lookback: Lookback,
        *,
        interval: float,
        max_engines: int,
        max_positions: int = 16,
        thresholds: VerdictThresholds | None = None,
        speed: SpeedOptions | None = None,
        requests: RequestState | None = None,
    ) -> None:
        """``interval`` is the configured one, until the first poll gives the interval in force."""
        self.name = name
        self._lookback = lookback
        self._max_positions = max_positions
        self._engines = Engines(lookback, max_engines)
        self._requests = requests
        self._speed = SpeedState(speed or SpeedOptions())
        self._speeds: Mapping[str, ModelSpeed] = {}
        self.judge = Judge(thresholds or VerdictThresholds())
        self._judgements: tuple[ModelJudgement, ...] = ()
        self._process_start: float | None = None
        self._last_scrape: float | None = None
        self._duration: float | None = None
        self._interval = interval
        self._errors: Tally[str] = Tally()
        self._last_error: ScrapeError | None = None
        self._overflowed_positions = 0
        self.limitations: Mapping[EngineKey, frozenset[Limitation]] = {}
        self.version = VersionFamily.UNKNOWN
        self.malformed_lines = 0
        self.restarts = 0

    @property
    def is_polled(self) -> bool:
        """Whether one poll has ended, successfully or not."""
        return self._last_scrape is not None or self._last_error is not None

    @property
    def engines(self) -> Mapping[EngineKey, EngineState]:
        """The engines on the pages, and those that left them recently."""
        return self._engines.states

    @property
    def overflowed_engines(self) -> int:
        """Engines that became ``other``, poll by poll."""
        return self._engines.overflowed

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """Takes in one poll's page; see ``ScrapeSink``."""
        restarted = is_another(self._process_start, page.process_start)
        self._process_start = page.process_start
        engines = self._engines.bounded(page)
        totals = [self._engines.observe(at, engine, page.process_start) for engine in engines]
        self.restarts += any(total.restarted for total in totals) if restarted is None else restarted
        self._overflowed_positions += sum(
            max(len(engine.accepted_per_position) - self._max_positions, 0) for engine in engines
        )
        several = page.process_start is None
        self.limitations = {engine.key: limitations(engine, several_processes=several) for engine in engines}
        if page.version is not VersionFamily.UNKNOWN:
            self.version = page.version
        self.malformed_lines += page.malformed
        self._last_scrape, self._duration, self._interval = at, duration, interval
        self._last_error = None
        self._engines.forget(at - self._lookback.history)
        timelines = self._engines.timelines(page)
        self._speed.scraped(at, timelines, several_processes=several)
        if self._requests is not None:
            self._speed.finished(at, self._requests.scraped(at, timelines, several_processes=several))
        self._judge_models(at)

    def failed(self, at: float, error: ScrapeError) -> None:
        """Takes in a failed poll; see ``ScrapeSink``."""
        self._errors[error.reason] += 1
        self._last_error = error
        if self._requests is not None:
            self._speed.finished(at, self._requests.failed(at))
        self._judge_models(at)

    def report(self, now: float, *, history: bool = False) -> TargetReport:
        """The state at ``now``, Unix seconds; ``history`` as in ``EngineState.report``."""
        up = self._is_fresh(now)
        return TargetReport(
            name=self.name,
            up=up,
            last_scrape=self._last_scrape,
            duration=self._duration,
            interval=self._interval,
            errors=self._errors,
            last_error=self._last_error,
            malformed_lines=self.malformed_lines,
            restarts=self.restarts,
            overflowed_engines=self.overflowed_engines,
            overflowed_positions=self._overflowed_positions,
            version=self.version,
            engines=tuple(
                state.report(key, now, fresh=up and self._is_shown(state), history=history)
                for key, state in self.engines.items()
            ),
            limitations=self.limitations if up else {},
            requests=self._requests.report() if self._requests is not None else None,
            judgements=self._judgements if up else (),
            speeds=self._speeds if up else {},
            engine_speeds=self._speed.engines(now) if up else {},
            loads=self._speed.loads(),
            balances={
                model.model_name: self._speeds[model.model_name].temperatures
                for model in (self._requests.models if self._requests is not None else ())
                if model.model_name in self._speeds
            },
        )

    def _is_fresh(self, now: float) -> bool:
        if self._last_scrape is None or self._last_error is not None:
            return False
        return now - self._last_scrape <= _FRESH_INTERVALS * self._interval

    def _is_shown(self, state: EngineState) -> bool:
        """Whether the engine was on the last page."""
        return state.seen_at == self._last_scrape

    def _judge_models(self, at: float) -> None:
        self._speeds = self._speed.models(at)
        self._judgements = self.judge.judge(self._evidence())

    def _evidence(self) -> Iterator[ModelEvidence]:
        """The evidence for each model; nothing about its engines is known while polls fail."""
        acceptances: dict[str, list[Acceptance]] = defaultdict(list)
        for key, state in self.engines.items() if self._last_error is None else ():
            if self._is_shown(state):
                acceptances[key.model_name] += [state.acceptance] if state.acceptance is not None else []
        requests = {model.model_name: model for model in self._requests.models} if self._requests is not None else {}
        requests.pop(OTHER.model_name, None)  # a mixture of models, which says nothing about any of them
        for name in dict.fromkeys([*acceptances, *requests]):
            model = requests.get(name)
            total = sum(found.draft_tokens for found in model.recent.values()) if model else 0.0
            speed = self._speeds.get(name) if name in acceptances else None
            yield ModelEvidence(
                model_name=name,
                whole=_timed(_whole(acceptances.get(name, [])), speed),
                temperatures={
                    label: replace(
                        found.evidence(total),
                        speedup=_estimate(speed.temperatures[label]) if speed and speed.temperatures else None,
                        costs=speed.whole.costs if speed else None,
                    )
                    for label, found in (model.recent.items() if model else ())
                },
                coverage=model.coverage if model else None,
            )


def _timed(evidence: Evidence, speed: ModelSpeed | None) -> Evidence:
    if speed is None:
        return evidence
    whole = speed.whole
    return replace(evidence, speedup=_estimate(whole), costs=whole.costs, costs_by_load=speed.costs_by_load)


def _estimate(speed: EngineSpeed | TemperatureSpeed) -> Estimate | None:
    return Estimate(speed.speedup.ratio, speed.speedup.error) if speed.speedup is not None else None


def _whole(acceptances: list[Acceptance]) -> Evidence:
    """The evidence for a model as a whole: all its engines together, whatever its requests."""
    if not acceptances:
        return Evidence()
    together = over_engines(acceptances)
    return Evidence(
        drafts=together.drafts,
        draft_tokens=together.draft_tokens,
        accepted_tokens=together.accepted_tokens,
        acceptance=together.rate,
        position_rates=together.position_rates,
    )
