"""The state of one model: its speed, and its requests by temperature and group.

Requests are known only where the plug-in is connected.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from sidecar.analysis.certainty.past import Counted, PastWatch
from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.change import ChangeWatch, Moment, sample_of
from sidecar.analysis.checklist.traffic import TrafficWindow
from sidecar.analysis.distributions import quantile
from sidecar.analysis.endings import Endings
from sidecar.analysis.evidence import Acceptance
from sidecar.analysis.finer import Part, parts
from sidecar.analysis.overlong import OverlongRequests
from sidecar.analysis.speed.model_speed import ModelSpeed
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.group_watch import GroupWatch
from sidecar.analysis.split.life import Cut
from sidecar.analysis.split.strata import Kind
from sidecar.analysis.split.tallies import (
    OWN,
    JudgedTally,
    Label,
    LiveTally,
    RequestLabels,
    Tallies,
    TemperatureBuckets,
    hours,
    sum_by_label,
    windows,
)
from sidecar.analysis.split.view import CountedLife, FinishedRequests
from sidecar.analysis.temperature_state import TemperatureState, request_numbers
from sidecar.analysis.windows.growth import HOUR
from sidecar.analysis.windows.recent import Ordered, Recent, acceptance_bin
from sidecar.analysis.windows.sums import SlidingSums
from sidecar.requests.keys import ABOVE_2, GROUPED, LOOP, OTHER, Ending, Table
from sidecar.requests.messages import FinishedRequest, Speculation
from sidecar.requests.tally import NO_REQUESTS, Tally
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainEndings
from sidecar.settings.groups import MOST_MIN_REQUESTS

_STRUCTURED: Final = "structured"


@dataclass(frozen=True, slots=True)
class TakenCut:
    """The cut of a life that the totals contain, and its tallies by label."""

    cut: Cut
    tallies: Tallies


class _Latest(NamedTuple):
    """The acceptance of a finished request."""

    at: float
    acceptance: float


class ModelState:
    """One model; bounded whatever the traffic. Every temperature exists from the start, at 0."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._buckets = TemperatureBuckets(settings.temperature_buckets)
        window = settings.latency_window
        measured = settings.measured

        self.assumed_method = settings.speculative_method
        self.plain_latencies = measured.latencies(name)
        self.plain_cache = measured.plain_cache.get(name)
        missing = Withheld.OTHER_MODEL if measured.plain_steps else Withheld.NO_REFERENCE
        self.speed = ModelSpeed(
            measured.plain_steps.get(name), missing, window=window, history=settings.history
        )

        self.temperatures = {
            label: TemperatureState(window) for label in (*self._buckets.labels, OTHER)
        }
        known = [OWN]
        known += [(Table.TEMPERATURE, label) for label in self._buckets.labels]
        known += [(by, label) for by, declared in GROUPED.items() for label in declared.labels]
        # What was drafted at each temperature and in each group.
        self.tallies = {label: _new_tally(label, window) for label in known}
        self._marked = 0.0  # the last good poll's time
        # what decides whether a rate is certain: of all requests, and at each temperature
        self.past = PastWatch()
        self.pasts: dict[str, PastWatch] = {label: PastWatch() for label in self.temperatures}

        # Finished requests by all that is told of them, for comparing groups of them.
        self.groups = GroupWatch()
        # those of the window by temperature, and by temperature in hundredths
        self._drafting = SlidingSums[str, Sums](settings.latency_window, 20)
        self._finer = SlidingSums[int, Sums](settings.latency_window, 20)
        # what structured requests decoded without any draft
        self._undrafted = SlidingSums[str, int](settings.latency_window)
        self.traffic = TrafficWindow()
        self.overlong = OverlongRequests(window)
        self.changes = ChangeWatch(window)

        baseline = self._usual_endings(measured.plain_endings.get(name, {}))
        self.endings = Endings(window, baseline)

        self._labels = RequestLabels(self._buckets, names_adapters=settings.plugin.adapters)
        self._taken: dict[str, TakenCut] = {}  # of each life, by its ``start``
        self._acceptances = Recent(settings.latency_window, acceptance_bin)
        # for a slow hour
        self._latest: deque[_Latest] = deque(maxlen=MOST_MIN_REQUESTS)

    def begin_again(self, at: float) -> "ModelState":
        """The same model, judged by what it does from ``at`` on.

        What is exported as a counter goes on: distributions, and the time saved and lost.
        """
        again = ModelState(self.name, self._settings)
        for label, state in self.temperatures.items():
            again.temperatures[label].go_on_from(state)
            again.speed.temperature(label).saved = self.speed.temperature(label).saved
            again.speed.temperature(label).lost = self.speed.temperature(label).lost
        again.endings = self.endings.begin_again()
        again.changes = self.changes.begin_again(at)
        return again

    def runs_on(self, accelerator: str | None) -> None:
        """An engine runs on this one: what was measured on another is no reference."""
        curve = self.speed.curve
        if curve is not None and curve.is_of_another(accelerator):
            self.speed.forget_baseline(Withheld.OTHER_ACCELERATOR)
            self.plain_latencies = {}
            self.plain_cache = None

    def _usual_endings(
        self, measured: Mapping[float, PlainEndings]
    ) -> dict[tuple[str, Ending], int]:
        """The baseline's endings by the label of their temperature."""
        counts: dict[tuple[str, Ending], int] = {}
        for temperature, endings in measured.items():
            label = self._buckets.label(round(100 * temperature))
            for ending, count in endings.by_ending.items():
                counts[label, ending] = counts.get((label, ending), 0) + count
        return counts

    def take_cuts(self, at: float, lives: Sequence[CountedLife]) -> int:
        """Takes in the cuts of the model's lives that count, by ``at``, a good poll's time.

        Returns how many more adapters have become "other".
        """
        overflowed = self._labels.overflowed
        is_renamed = self._labels.name_adapters(life.cut for life in lives)
        before = self._taken
        if lives and not before:
            self._begin(at, lives)

        self._taken = {}
        for life in lives:
            taken = before.get(life.start)
            if taken is None:
                taken = TakenCut(life.first, self._labels.sums(life.first))
            elif is_renamed:
                taken = TakenCut(taken.cut, self._labels.sums(taken.cut))
            self._taken[life.start] = self._grow(taken, life.cut)

        self._set_totals(sum_by_label(taken.tallies for taken in self._taken.values()))
        return max(self._labels.overflowed - overflowed, 0)

    def _grow(self, taken: TakenCut, cut: Cut) -> TakenCut:
        """Adds what a life has counted since the cut that was ``taken``; returns the ``cut``."""
        if cut is taken.cut:
            return taken
        tallies = dict(taken.tallies)
        for label, growth in self._labels.sums(cut, taken.cut).items():
            tallies[label] = tallies.get(label, NO_REQUESTS) + growth
            if growth.has_fallen(NO_REQUESTS):
                continue
            self._tally(label).grow(growth)
            by, name = label
            if by is Table.TEMPERATURE:
                self.pasts[name].grow(_counted(growth))
        return TakenCut(cut, tallies)

    def _set_totals(self, totals: Mapping[Label, Tally]) -> None:
        for label in list(self.tallies):
            by, _ = label
            if by is Table.ADAPTER and label not in totals:
                del self.tallies[label]  # of a process of vLLM that has ended

        for label in [*self.tallies, *totals]:  # new ones in the order in which they appeared
            self._tally(label).total = totals.get(label, NO_REQUESTS)

    def _begin(self, at: float, lives: Sequence[CountedLife]) -> None:
        """The tallies' windows begin where the ``lives`` do, not with vLLM's first page."""
        polled = self._marked or at
        begun = [polled if life.began is None else life.began for life in lives]
        self._marked = min(at, *begun)
        for tally in self.tallies.values():
            tally.mark(self._marked)
        for past in self.pasts.values():
            past.mark(self._marked)

    def _tally(self, label: Label) -> LiveTally:
        """A label's, new on first use: its window then begins with the last poll."""
        if label not in self.tallies:
            self.tallies[label] = _new_tally(label, self._settings.latency_window)
            self.tallies[label].mark(self._marked)
        return self.tallies[label]

    def take_finished(self, at: float, requests: FinishedRequests) -> None:
        """Takes in an engine's requests that finished since the last poll.

        Comes after the same poll's ``speed.polled``. Those that are early are in no window, as in
        no tally's.
        """
        for label, ended in self._by_temperature(requests.early).items():
            numbers = [request_numbers(request) for request in ended]
            self.temperatures[label].observe(at, numbers, are_recent=False)
            self.temperatures[label].count_endings(ended)

        if self._latest and at < self._latest[-1].at:  # the clock was set back
            self._latest.clear()

        by_temperature = self._by_temperature(requests.recent)
        acceptances: list[float] = []
        for label, ended in by_temperature.items():
            numbers = [request_numbers(request) for request in ended]
            self.temperatures[label].observe(at, numbers, are_recent=True)
            self.temperatures[label].count_endings(ended)
            acceptances += [one.steady for one in numbers if one.steady is not None]
            self.endings.finished(at, label, ended)
            sums = _sums(ended)
            self.past.finished(sums)
            self.pasts[label].finished(sums)

        self._latest.extend(_Latest(at, acceptance) for acceptance in acceptances)
        self._compare(at, requests.key.engine, by_temperature)
        every = list(chain.from_iterable(by_temperature.values()))
        if every:
            self._acceptances.add(at, acceptances)
            self._add_finer(at, every)
            undrafted = sum(map(_undrafted_tokens, every))
            self._undrafted.add(at, {_STRUCTURED: undrafted} if undrafted else {})
        if requests.is_plain:
            self.traffic.add(at, every)

        self.overlong.finished(requests.key.engine, requests.longest, requests.recent)
        self.speed.finished(by_temperature)

    def _by_temperature(
        self, requests: Iterable[FinishedRequest]
    ) -> dict[str, list[FinishedRequest]]:
        """The users' requests, which this product's own are not."""
        by_temperature: dict[str, list[FinishedRequest]] = {}
        for request in requests:
            if request.is_own:
                continue
            by_temperature.setdefault(self._buckets.label(request.temperature), []).append(request)
        return by_temperature

    def _compare(
        self, at: float, engine: str, requests: Mapping[str, Sequence[FinishedRequest]]
    ) -> None:
        """Adds requests, by temperature, to those that are compared.

        Repetition loops are left out: they are easy to draft, and say nothing about other text.
        """
        cells: dict[Kind, Sums] = {}
        drafting: dict[str, Sums] = {}
        for temperature, ended in requests.items():
            # summed at once, since they are in the same cells
            alike: dict[tuple[Label, ...], list[FinishedRequest]] = {}
            for request in ended:
                if request.draft_tokens and request.ending != LOOP:
                    alike.setdefault(tuple(self._labels.compared(request)), []).append(request)

            sums = {Kind(temperature, engine, kind): _sums(same) for kind, same in alike.items()}
            if sums:
                cells |= sums
                drafting[temperature] = total(sums.values())

        if cells:
            self.groups.add(at, cells)
            self._drafting.add(at, drafting)

    def _add_finer(self, at: float, requests: Sequence[FinishedRequest]) -> None:
        """Adds requests to their own temperatures, without repetition loops as in ``_compare``."""
        by_hundredth: dict[int, list[FinishedRequest]] = {}
        for request in requests:
            hundredth = request.temperature
            is_told = request.draft_tokens and request.ending != LOOP
            if is_told and hundredth is not None and hundredth < ABOVE_2:
                by_hundredth.setdefault(hundredth, []).append(request)

        self._finer.add(at, {hundredth: _sums(same) for hundredth, same in by_hundredth.items()})

    def forget_past(self) -> None:
        """What was counted of all requests was another server's."""
        self.past = PastWatch()

    def mark(self, at: float, running: float = 0.0) -> None:
        """Timestamps all totals with ``at``, a good poll's time.

        So many requests of engines that speculate are ``running``.
        """
        for state in self.temperatures.values():
            state.drop(at)

        self._drafting.drop(at)
        self._finer.drop(at)
        self._acceptances.drop(at)
        self._undrafted.drop(at)
        self.traffic.mark(at)
        self.overlong.mark(at)
        self.endings.mark(at)

        self._marked = at
        self.past.mark(at, running)
        if self._taken:
            for tally in self.tallies.values():
                tally.mark(at)
            for past in self.pasts.values():
                past.mark(at)
        self.speed.mark(at)
        if self.groups.is_due(at):
            self.groups.judge(at, self.spreads, self._settings.thresholds.min_requests)

    @property
    def spreads(self) -> Mapping[str, Spread]:
        """How much the requests at each temperature differ."""
        return {label: past.spread for label, past in self.pasts.items()}

    def parts(self, min_requests: int) -> Mapping[str, tuple[Part, ...]]:
        """By bucket, the temperatures in it that differ; see ``finer.parts``."""
        return parts(self._finer.sums, self._buckets.label, min_requests)

    def moment(self, at: float, speculation: Speculation, running: float | None) -> Moment:
        """The finished requests of the window by temperature, to be compared with later ones."""
        sides = {
            label: sample_of(
                self._drafting.sums[label],
                state.recent_ttft.ordered(),
                state.recent_tpot.ordered(),
            )
            for label, state in self.temperatures.items()
            if label in self._drafting.sums
        }
        return Moment(at, speculation, running, sides)

    def windows(self) -> dict[str, Acceptance]:
        """Every temperature over the sliding window, each with its share."""
        return windows(self._by_label())

    def hours(self) -> dict[str, Acceptance]:
        """The same over the last hour, or as much of it as is known."""
        return hours(self._by_label())

    @property
    def structured_undrafted(self) -> int:
        """Tokens that structured requests of the window decoded without any draft."""
        return self._undrafted.sums.get(_STRUCTURED, 0)

    @property
    def own(self) -> Acceptance:
        """Of this product's own requests, over the sliding window."""
        return self.tallies[OWN].window

    def _by_label(self) -> dict[str, JudgedTally]:
        """The temperatures' tallies."""
        return {
            label: tally
            for (_, label), tally in self.tallies.items()
            if isinstance(tally, JudgedTally)
        }

    def acceptance_p10(self, now: float, needed: int) -> float | None:
        """The 10th percentile of single requests' acceptance; see ``ModelReport``.

        None with fewer than ``needed`` requests.
        """
        rates: Sequence[float] | Ordered = self._acceptances.ordered()
        if len(rates) < needed:
            recent = [one.acceptance for one in self._latest if 0 <= now - one.at <= HOUR]
            rates = sorted(recent[-needed:])
        if len(rates) < needed:
            return None

        return quantile(rates, 0.1)


def _new_tally(label: Label, window: float) -> LiveTally:
    by, _ = label
    return JudgedTally(window) if by is Table.TEMPERATURE else LiveTally(window)


def _undrafted_tokens(request: FinishedRequest) -> int:
    """What a structured request decoded without any draft; an answer of one token is not meant."""
    if not request.structured or request.drafts:
        return 0
    return request.decoded_tokens


def _counted(growth: Tally) -> Counted:
    return Counted(growth.requests, growth.draft_tokens, growth.accepted_tokens)


def _sums(requests: Sequence[FinishedRequest]) -> Sums:
    """Of those with drafts."""
    drafted = [request for request in requests if request.draft_tokens]
    return Sums.of([one.draft_tokens for one in drafted], [one.accepted_tokens for one in drafted])
