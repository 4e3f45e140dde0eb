"""The state of one model: its speed and, where the plug-in is connected, its requests by temperature and group."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sidecar.analysis.distributions import (
    ACCEPTANCE_EDGES,
    Histogram,
    Ordered,
    Recent,
    acceptance_bin,
    duration_bin,
    quantile,
)
from sidecar.analysis.evidence import Acceptance
from sidecar.analysis.speed.model_speed import ModelSpeed
from sidecar.analysis.speed.speedup import Withheld
from sidecar.analysis.split.life import Cut, Life
from sidecar.analysis.split.strata import Cell, Strata
from sidecar.analysis.split.tallies import (
    Groups,
    Label,
    Labels,
    LiveTally,
    Tallies,
    TemperatureBuckets,
    prompt_label,
    sum_by_label,
)
from sidecar.requests.messages import FinishedRequest, Table
from sidecar.requests.tally import NOTHING, Outcome
from sidecar.settings import Settings
from sidecar.settings.groups import MOST_MIN_REQUESTS

LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0)  # few: each edge costs a series per temperature
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
DURATION_EDGES: Final = (2.5, 10.0, 60.0, 300.0)
ENGINE: Final = "engine"  # divides requests as a table does
FORBIDDEN: Final = "forbidden"  # structured requests without a draft; what counts is the tokens that they decoded
_HOUR: Final = 3600.0


class RequestNumbers(NamedTuple):
    """One finished request's numbers; None if it has none, or if a time would be negative."""

    acceptance: float | None
    length: float | None
    ttft: float | None
    tpot: float | None
    duration: float | None


def request_numbers(request: FinishedRequest) -> RequestNumbers:
    """The numbers of a request. A failed one has no times; one whose client left has the times until then."""
    arrival, first, last = request.arrival, request.first_token, request.last_token
    failed = request.outcome is Outcome.ERROR
    decoded = request.output_tokens - 1
    decoding = None if failed or decoded < 1 else _between(first, last)
    return RequestNumbers(
        acceptance=request.accepted_tokens / request.draft_tokens if request.draft_tokens else None,
        length=1 + request.accepted_tokens / request.drafts if request.drafts else None,
        ttft=None if failed else _between(arrival, first),
        tpot=None if decoding is None else decoding / decoded,
        duration=None if failed else _between(arrival, last),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None or end < start else end - start


class TemperatureState:
    """One temperature; bounded whatever the traffic."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.tally = LiveTally(window)
        self.acceptances, self.lengths = Histogram(ACCEPTANCE_EDGES), Histogram(LENGTH_EDGES)
        self.ttft, self.tpot = Histogram(TTFT_EDGES), Histogram(TPOT_EDGES)
        self.durations = Histogram(DURATION_EDGES)
        self.recent_acceptances = Recent(window, acceptance_bin)
        self.recent_ttft, self.recent_tpot = Recent(window, duration_bin), Recent(window, duration_bin)

    def mark(self, at: float) -> None:
        """Timestamps all that was taken in so far with ``at``, a good poll's time."""
        self.tally.mark(at)
        for recent in (self.recent_acceptances, self.recent_ttft, self.recent_tpot):
            recent.drop(at)

    def finished(self, at: float, numbers: RequestNumbers) -> None:
        """Adds a request that finished before ``at``."""
        for histogram, value in zip(
            (self.acceptances, self.lengths, self.ttft, self.tpot, self.durations), numbers, strict=True
        ):
            if value is not None:
                histogram.observe(value)
        for recent, value in zip(
            (self.recent_acceptances, self.recent_ttft, self.recent_tpot),
            (numbers.acceptance, numbers.ttft, numbers.tpot),
            strict=True,
        ):
            if value is not None:
                recent.add(at, value)


class ModelState:
    """One model; bounded whatever the traffic. Every temperature exists from the start, at 0."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._buckets = TemperatureBuckets(settings.temperature_buckets)
        curves = settings.plain_step_times
        self.plain_cache = (settings.baseline_file or settings).plain_cache.get(name)
        missing = Withheld.OTHER_MODEL if curves else Withheld.NO_REFERENCE
        self.speed = ModelSpeed(curves.get(name), missing, window=settings.latency_window, history=settings.history)
        self.temperatures = {label: TemperatureState(settings.latency_window) for label in self._buckets.labels}
        self.groups = Groups(settings.latency_window)
        self.strata = {by: Strata(settings.latency_window) for by in (*self.groups.tallies, ENGINE, FORBIDDEN)}
        self._labels = Labels(self._buckets, names_adapters=settings.plugin.adapters)
        self._taken: dict[str, tuple[Cut, Tallies]] = {}  # each life's cut and its tallies by label, by ``start``
        self._acceptances = Recent(settings.latency_window, acceptance_bin)
        self._latest: deque[tuple[float, float]] = deque(maxlen=MOST_MIN_REQUESTS)  # for a slow hour

    def count(self, lives: Sequence[Life]) -> int:
        """Takes in the confirmed cuts of the model's lives; returns how many more adapters have become "other"."""
        overflowed = self._labels.overflowed
        is_renamed = self._labels.name_adapters(lives)
        before, self._taken = self._taken, {}
        for life in lives:
            start, cut = life.hello.start, life.confirmed
            if cut is None or life.first is None:
                continue
            taken, tallies = before.get(start) or (life.first, self._labels.sums(life.first.tables))
            if is_renamed:
                tallies = self._labels.sums(taken.tables)
            if cut is not taken:
                known, tallies = tallies, self._labels.sums(cut.tables)
                for label, tally in tallies.items():
                    if not tally.has_fallen(earlier := known.get(label, NOTHING)):
                        self._tally(label).grow(tally - earlier)
            self._taken[start] = (cut, tallies)
        totals = sum_by_label(tallies for _, tallies in self._taken.values())
        self.groups.keep_adapters({group for by, group in totals if by is Table.ADAPTER})
        for label in {*self._labelled(), *totals}:
            self._tally(label).total = totals.get(label, NOTHING)
        return max(self._labels.overflowed - overflowed, 0)

    def _tally(self, label: Label) -> LiveTally:
        table, name = label
        return self._of(name).tally if table is Table.TEMPERATURE else self.groups.tally(table, name)

    def _labelled(self) -> list[Label]:
        groups = [(by, group) for by, tallies in self.groups.tallies.items() for group in tallies]
        return [(Table.TEMPERATURE, label) for label in self.temperatures] + groups

    def finished(self, at: float, engine: str, requests: Iterable[FinishedRequest]) -> None:
        """Takes in an engine's requests that finished since the last poll, after that poll's ``speed.polled``."""
        if self._latest and at < self._latest[-1][0]:  # the clock was set back
            self._latest.clear()
        by_temperature: dict[str, list[FinishedRequest]] = {}
        for request in requests:
            label = self._buckets.label(request.temperature)
            by_temperature.setdefault(label, []).append(request)
            numbers = request_numbers(request)
            self._of(label).finished(at, numbers)
            for by, (stratum, group) in self._cells(label, engine, request).items():
                drafted, accepted = request.draft_tokens, request.accepted_tokens
                self.strata[by].add(at, stratum, group, drafted=drafted, accepted=accepted)
            if request.structured and not request.drafts:
                self.strata[FORBIDDEN].add(at, label, "", drafted=max(request.output_tokens - 1, 0), accepted=0)
            if numbers.acceptance is not None:
                self._acceptances.add(at, numbers.acceptance)
                self._latest.append((at, numbers.acceptance))
        self.speed.finished(by_temperature)

    def _cells(self, temperature: str, engine: str, request: FinishedRequest) -> Mapping[str, Cell]:
        """Where a request is compared: with others at its temperature; between engines also of its prompt length."""
        prompt = prompt_label(max(request.prompt_tokens - 1, 0).bit_length())
        cells: dict[str, Cell] = {
            Table.PROMPT_TOKENS: (temperature, prompt),
            Table.OUTPUT: (temperature, "structured" if request.structured else "free"),
            Table.SAMPLING: (temperature, request.sampling or "plain"),
            ENGINE: ((temperature, prompt), engine),
        }
        if self._settings.plugin.adapters:
            cells[Table.ADAPTER] = temperature, self._labels.label(Table.ADAPTER, request.adapter or "")
        return cells

    def _of(self, label: str) -> TemperatureState:
        if label not in self.temperatures:
            self.temperatures[label] = TemperatureState(self._settings.latency_window)
        return self.temperatures[label]

    def mark(self, at: float) -> None:
        """Timestamps all totals with ``at``, a good poll's time."""
        for state in self.temperatures.values():
            state.mark(at)
        for groups in self.groups.tallies.values():
            for tally in groups.values():
                tally.mark(at)
        self._acceptances.drop(at)
        self.speed.mark(at)
        for strata in self.strata.values():
            strata.drop(at)

    def windows(self) -> tuple[dict[str, Acceptance], dict[str, Acceptance]]:
        """Every temperature over the sliding window, and over the last hour, each with its share."""
        short = {label: state.tally.window for label, state in self.temperatures.items()}
        return _shared(short), _shared({label: state.tally.hour for label, state in self.temperatures.items()})

    def acceptance_p10(self, now: float, needed: int) -> float | None:
        """The 10th percentile of single requests' acceptance; see ``ModelReport``. None with fewer than ``needed``."""
        rates: Sequence[float] | Ordered = self._acceptances.ordered()
        if len(rates) < needed:
            rates = sorted([rate for at, rate in self._latest if 0 <= now - at <= _HOUR][-needed:])
        return quantile(rates, 0.1) if len(rates) >= needed else None


def _shared(windows: dict[str, Acceptance]) -> dict[str, Acceptance]:
    total = sum(one.draft_tokens for one in windows.values())
    return {label: replace(one, share=one.draft_tokens / total if total else 0.0) for label, one in windows.items()}
