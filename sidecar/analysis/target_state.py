"""What is known of one vLLM server: every engine on its page, and how the scraping goes."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sidecar.analysis.acceptance import Acceptance, over_engines
from sidecar.analysis.engine_state import EngineReport, EngineState, Lookback
from sidecar.analysis.limitation import Limitation, limitations
from sidecar.analysis.overflow import Overflow, is_another
from sidecar.analysis.request_state import RequestReport, RequestState
from sidecar.analysis.speed_state import LoadTotals, ModelSpeed, SpeedOptions, SpeedState, TemperatureSpeed
from sidecar.analysis.speedup import EngineSpeed, Speedup
from sidecar.analysis.verdict import Estimate, Evidence, Judge, ModelEvidence, ModelJudgement, VerdictThresholds
from sidecar.engine.continuation import Totals
from sidecar.engine.merge import OTHER
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.timeline import Timeline
from sidecar.engine.version import VersionFamily
from sidecar.errors import ScrapeError

_FRESH_INTERVALS = 2  # a poll's gauges are shown for this many intervals, then no more


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """One server at one moment.

    ``last_scrape`` is when the last good page was read, Unix seconds; None before the first.
    ``interval`` is the pause in force between two polls, ``duration`` what the last good one took: seconds.
    """

    name: str
    up: bool
    last_scrape: float | None
    duration: float | None
    interval: float
    errors: Mapping[str, int]  # polls without a page, by ScrapeError.reason
    last_error: ScrapeError | None  # None while up
    malformed_lines: int
    restarts: int
    overflowed_engines: int  # engines that went under "other", poll by poll
    overflowed_positions: int  # draft positions that did, poll by poll
    version: VersionFamily
    engines: tuple[EngineReport, ...]
    limitations: Mapping[EngineKey, frozenset[Limitation]]
    requests: RequestReport | None  # None without a request source
    judgements: tuple[ModelJudgement, ...]  # one a model, as of the last poll; empty while not up
    speeds: Mapping[str, ModelSpeed]  # by model that speculates, the same
    engine_speeds: Mapping[EngineKey, EngineSpeed]  # of those models, the same
    loads: Mapping[EngineKey, Mapping[str, LoadTotals]]  # what was decoded at each load, since the start
    balances: Mapping[str, Mapping[str, TemperatureSpeed]]  # by model and temperature, since the start


class TargetState:
    """A scrape sink: keeps what one server's pages tell; bounded in engines and in time."""

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
        """``interval`` is the one to expect until the first poll tells the real one."""
        self.name = name
        self._lookback = lookback
        self._max_engines = max_engines
        self._max_positions = max_positions
        self._requests = requests
        self._speed = SpeedState(speed or SpeedOptions())
        self._judge = Judge(thresholds or VerdictThresholds())
        self.judgements: tuple[ModelJudgement, ...] = ()
        self.speeds: Mapping[str, ModelSpeed] = {}
        self.engines: dict[EngineKey, EngineState] = {}
        self.limitations: dict[EngineKey, frozenset[Limitation]] = {}
        self.version = VersionFamily.UNKNOWN
        self._process_start: float | None = None
        self._last_scrape: float | None = None
        self._duration: float | None = None
        self._interval = interval
        self._errors: Tally[str] = Tally()
        self._last_error: ScrapeError | None = None
        self.malformed_lines = 0
        self.restarts = 0
        self._overflow = Overflow()
        self.overflowed_engines = 0
        self.overflowed_positions = 0

    @property
    def polled(self) -> bool:
        """Whether one poll has ended, well or not."""
        return self._last_scrape is not None or self._last_error is not None

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """Takes in one poll's page; see ``ScrapeSink``."""
        restarted = self._restarted(page.process_start)
        engines = self._bounded(page)
        totals = [self._observe(at, engine, page.process_start) for engine in engines]
        self.restarts += any(total.restarted for total in totals) if restarted is None else restarted
        self.overflowed_positions += sum(
            max(len(engine.accepted_per_position) - self._max_positions, 0) for engine in engines
        )
        several = page.process_start is None
        self.limitations = {engine.key: limitations(engine, several_processes=several) for engine in engines}
        if page.version is not VersionFamily.UNKNOWN:
            self.version = page.version
        self.malformed_lines += page.malformed
        self._last_scrape, self._duration, self._interval = at, duration, interval
        self._last_error = None
        self._forget(at - self._lookback.history)
        timelines = self._timelines(page)
        self._speed.polled(at, timelines, several_processes=several)
        if self._requests is not None:
            self._speed.finished(at, self._requests.polled(at, timelines, several_processes=several))
        self._judge_models(at)

    def failed(self, at: float, error: ScrapeError) -> None:
        """Takes in a poll that gave nothing; see ``ScrapeSink``."""
        self._errors[error.reason] += 1
        self._last_error = error
        if self._requests is not None:
            self._speed.finished(at, self._requests.unpolled(at))
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
            overflowed_positions=self.overflowed_positions,
            version=self.version,
            engines=tuple(
                state.report(key, now, fresh=up and state.seen_at == self._last_scrape, history=history)
                for key, state in self.engines.items()
            ),
            limitations=self.limitations if up else {},
            requests=self._requests.report() if self._requests is not None else None,
            judgements=self.judgements if up else (),
            speeds=self.speeds if up else {},
            engine_speeds=self._speed.engines(now) if up else {},
            loads=self._speed.loads(),
            balances={
                model.model_name: self.speeds[model.model_name].temperatures
                for model in (self._requests.models if self._requests is not None else ())
                if model.model_name in self.speeds
            },
        )

    def _judge_models(self, at: float) -> None:
        self.speeds = self._speed.models(at)
        self.judgements = self._judge.judge(self._evidence())

    def _evidence(self) -> Iterator[ModelEvidence]:
        """What each model is judged by; nothing of its engines is known while polls fail."""
        known: dict[str, list[Acceptance]] = defaultdict(list)
        for key, state in self.engines.items():
            if self._last_error is None and state.seen_at == self._last_scrape:
                known[key.model_name] += [state.acceptance] if state.acceptance is not None else []
        requests = {model.model_name: model for model in self._requests.models} if self._requests is not None else {}
        requests.pop(OTHER.model_name, None)  # several models' requests say nothing of any of them
        for name in dict.fromkeys([*known, *requests]):
            model = requests.get(name)
            total = sum(work.draft_tokens for work in model.recent.values()) if model else 0.0
            # While polls fail nothing is known of the engines, and so of their steps.
            speed = self.speeds.get(name) if name in known else None
            yield ModelEvidence(
                model_name=name,
                whole=replace(_whole(known.get(name, [])), speedup=_estimate(speed.whole.speedup if speed else None)),
                temperatures={
                    label: replace(work.evidence(total), speedup=_speedup_at(speed, label))
                    for label, work in (model.recent.items() if model else ())
                },
                coverage=model.coverage if model else None,
            )

    def _is_fresh(self, now: float) -> bool:
        if self._last_scrape is None or self._last_error is not None:
            return False
        return now - self._last_scrape <= _FRESH_INTERVALS * self._interval

    def _restarted(self, process_start: float | None) -> bool | None:
        """Whether vLLM's process is another than at the last poll; None where the pages don't tell."""
        before, self._process_start = self._process_start, process_start
        return is_another(before, process_start)

    def _timelines(self, page: PageSnapshot) -> dict[EngineKey, Timeline]:
        """The counters' histories of all that is on the page, each under its model.

        Engines past the bound are one; only where they are of several models are they a model ``other``.
        """
        shown = {e.key: self.engines[e.key].timeline for e in page.engines if e.key in self.engines}
        rest = {engine.key.model_name for engine in page.engines if engine.key not in self.engines}
        if rest:
            model = rest.pop() if len(rest) == 1 else OTHER.model_name
            shown[EngineKey(model, OTHER.engine)] = self.engines[OTHER].timeline
        return shown

    def _observe(self, at: float, engine: EngineSnapshot, process_start: float | None) -> Totals:
        state = self.engines.get(engine.key)
        if state is None:
            state = self.engines[engine.key] = EngineState(self._lookback)
        # By engine, since one may show up only some polls after its process restarted.
        # ``other`` is carried on already.
        restarted = False if engine.key == OTHER else is_another(state.process_start, process_start)
        state.process_start = process_start
        return state.observe(at, engine, restarted=restarted)

    def _bounded(self, page: PageSnapshot) -> list[EngineSnapshot]:
        """The engines under their own keys up to the bound, first come first served, the rest as ``other``."""
        own = [key for key in self.engines if key != OTHER]
        free = self._max_engines - len(own)
        new = [engine.key for engine in page.engines if engine.key not in self.engines]
        kept = {*own, *new[:free]}
        rest = [engine for engine in page.engines if engine.key not in kept]
        self.overflowed_engines += len(rest)
        other = self._overflow.merged(rest, page.process_start)
        inside = [engine for engine in page.engines if engine.key in kept]
        return inside if other is None else [*inside, other]

    def _forget(self, before: float) -> None:
        """Drops engines that a living vLLM has not shown for a long time: another model is served now."""
        self.engines = {key: state for key, state in self.engines.items() if state.seen_at >= before}


def _speedup_at(speed: ModelSpeed | None, temperature: str) -> Estimate | None:
    found = speed.temperatures.get(temperature) if speed is not None else None
    return _estimate(found.speedup) if found is not None else None


def _estimate(speedup: Speedup | None) -> Estimate | None:
    return Estimate(speedup.ratio, speedup.error) if speedup is not None else None


def _whole(acceptances: list[Acceptance]) -> Evidence:
    """What a model is judged by: all its engines together, whatever its requests."""
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
