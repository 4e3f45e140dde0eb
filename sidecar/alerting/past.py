"""What the direct push remembers of earlier reports; with Prometheus, the rules look it up."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Generic, TypeVar

from sidecar.analysis.judgement import Judgement
from sidecar.analysis.report import ModelReport, Report, TemperatureReport
from sidecar.findings.not_speculating import NotSpeculating

_DAY: Final = 86_400.0  # seconds for which a rate is remembered
_BRIDGED: Final = 360.0  # seconds for which what was last known holds on, as in the rules
_WHOLE: Final = ""  # the key of what is of the model as a whole
# As in the rules, in seconds: rates of five minutes are averaged over as many, a mean is over eight
# hours and a variance over two days, and what is assumed of it counts as much as four hours.
_AVERAGED: Final = 300.0
_MEAN_OVER: Final = 28_800.0
_VARIANCE_OVER: Final = 172_800.0
_ASSUMED: Final = 14_400.0
_LONGEST_STEP: Final = 300.0  # what follows a longer gap counts for no more
_FIRST_STEP: Final = 60.0
_ASSUMED_SPREAD: Final = 0.04
_MOST_OFF: Final = 3.0  # spreads: what is further off a mean counts for no more
_SPREADS: Final = 4.5  # a rate fell if it is so many spreads below its past, ...
_LEAST_FALL, _SURE_FALL = 0.05, 0.2  # ... by the first at least; by the second in any case
# A method that nothing names and that drafts so many tokens at once drafts none of them singly.
_ONE_PASS_TOKENS: Final = 9
_VARYING: Final = 0.1  # draft tokens per draft this far from a whole number come from several

_Place = tuple[str, str | None, tuple[object, ...]]  # model, temperature (None: all), manner


@dataclass(frozen=True, slots=True)
class _Rate:
    """An acceptance rate that is judged, and of how many draft tokens."""

    place: _Place
    value: float
    draft_tokens: float


@dataclass(frozen=True, slots=True)
class _Usual:
    """What a rate was up to ``at``, Unix seconds, and for how many seconds it has been known.

    ``recent`` are its last values, each with its time.
    """

    at: float
    recent: tuple[tuple[float, float], ...]
    mean: float
    variance: float = _ASSUMED_SPREAD**2
    known: float = _FIRST_STEP

    @property
    def rate(self) -> float:
        """Over ten minutes, since each value is of five."""
        return fmean(value for _, value in self.recent)

    @property
    def fall(self) -> float:
        """How far the rate is below its mean."""
        return self.mean - self.rate

    @classmethod
    def first(cls, value: float, at: float) -> "_Usual":
        """Of a rate that was not known before."""
        return cls(at, ((at, value),), value)

    def followed_by(self, value: float, at: float) -> "_Usual":
        """With the next value, ``at`` its time."""
        recent = tuple(one for one in self.recent if at - _AVERAGED <= one[0] < at)
        step = min(max(at - self.at, 0.0), _LONGEST_STEP)
        known = min(self.known + step, _VARIANCE_OVER)
        after = replace(self, at=at, recent=(*recent, (at, value)), known=known)

        spread = math.sqrt(self.variance)
        off = min(max((after.rate - self.mean) / spread, -_MOST_OFF), _MOST_OFF)

        mean = self.mean + off * spread * step / min(known, _MEAN_OVER)
        variance = self.variance * (1 + (off**2 - 1) * step / (_ASSUMED + known))
        return replace(after, mean=mean, variance=variance)


def drafts_nothing(model: ModelReport) -> bool:
    """Whether it is found to draft nothing although it should."""
    return any(isinstance(finding, NotSpeculating) for finding in model.findings)


Part = TypeVar("Part")


class _LastKnown(Generic[Part]):
    """Parts of each model as they were when they were last known, for at most six minutes.

    ``known`` gives those of a model that its report knows, by a key.
    """

    def __init__(self, known: Callable[[ModelReport], Mapping[str, Part]]) -> None:
        self._known = known
        self._last: dict[tuple[str, str], tuple[float, Part]] = {}  # model, key: Unix seconds, part

    def observe(self, report: Report) -> None:
        since = report.at - _BRIDGED
        self._last = {
            place: (at, part)
            for place, (at, part) in self._last.items()
            if since < at <= report.at  # else the clock was set back
        }
        for model in report.models:
            for key, part in self._known(model).items():
                self._last[model.model_name, key] = report.at, part

    def of(self, model: ModelReport) -> dict[str, Part]:
        """What the model's report knows, or was known within six minutes."""
        lately = {
            key: part for (name, key), (_, part) in self._last.items() if name == model.model_name
        }
        return lately | dict(self._known(model))


class Past:
    """When the push began, whether an engine hung, and how each acceptance rate was within a day.

    After a restart of vLLM, what the plug-in tells is unknown for a while. Until it is known again,
    ``replies``, ``drafting`` and ``temperatures`` have it as it was.

    Bounded: a rate that was not seen for a day is forgotten, and there is one for each model,
    temperature and manner of drafting.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # Unix seconds of the first report; None before it
        self.was_stalled = False  # whether an engine was stalled at the last good poll
        self._usual: dict[_Place, _Usual] = {}
        self._replies = _LastKnown(_that_ends)
        self._drafting = _LastKnown(_that_drafts_or_not)
        self._split = _LastKnown(_judged)

    def observe(self, report: Report) -> None:
        """Takes in a report, each only once and in their order."""
        if self.began is None:
            self.began = report.at

        if report.scrape.up:
            self.was_stalled = bool(report.health.stalled)

        for known in (self._replies, self._drafting, self._split):
            known.observe(report)

        since = report.at - _DAY
        self._usual = {place: usual for place, usual in self._usual.items() if usual.at > since}
        for model in report.models:
            for rate in _rates(model, self.temperatures(model)):
                usual = self._usual.get(rate.place)
                if usual is None:
                    self._usual[rate.place] = _Usual.first(rate.value, report.at)
                else:
                    self._usual[rate.place] = usual.followed_by(rate.value, report.at)

    def replies(self, model: ModelReport) -> ModelReport:
        """The model as it was when it was last known how its replies end."""
        return self._replies.of(model).get(_WHOLE, model)

    def drafting(self, model: ModelReport) -> ModelReport:
        """The model as it was when it was last known whether it drafts."""
        return self._drafting.of(model).get(_WHOLE, model)

    def temperatures(self, model: ModelReport) -> Sequence[TemperatureReport]:
        """Each of the model's temperatures as it was when it was last judged."""
        return tuple(self._split.of(model).values())

    def has_dropped(self, model: ModelReport) -> bool:
        """Whether the model's rate is below what each temperature's own past gives today.

        Each temperature is compared with itself, drafted in the same manner, and counts by its
        share of today's draft tokens: a change of the mix is no drop.
        """
        rates = [
            (rate, self._usual[rate.place])
            for rate in _rates(model, self.temperatures(model))
            if rate.place in self._usual
        ]
        tokens = sum(rate.draft_tokens for rate, _ in rates)
        if not tokens:
            return False

        fall = sum(rate.draft_tokens * usual.fall for rate, usual in rates)
        spread = sum(rate.draft_tokens * math.sqrt(usual.variance) for rate, usual in rates)
        least = min(max(_SPREADS * spread / tokens, _LEAST_FALL), _SURE_FALL)
        return fall / tokens > least


def _that_ends(model: ModelReport) -> Mapping[str, ModelReport]:
    return {} if model.endings is None else {_WHOLE: model}


def _that_drafts_or_not(model: ModelReport) -> Mapping[str, ModelReport]:
    is_known = drafts_nothing(model) or model.judgement.judged is not None
    return {_WHOLE: model} if is_known else {}


def _judged(model: ModelReport) -> Mapping[str, TemperatureReport]:
    """The temperatures that are judged: a split is there before it has passed their gates."""
    return {
        part.temperature: part for part in model.temperatures if part.judgement.judged is not None
    }


def _rates(model: ModelReport, temperatures: Sequence[TemperatureReport]) -> Iterator[_Rate]:
    """The rates by the ``temperatures``, each judged; without any, that of the whole model."""
    manner = _manner(model.judgement)
    if manner is None:
        return

    parts: list[tuple[str | None, Judgement]] = [
        (part.temperature, part.judgement) for part in temperatures
    ]
    for temperature, judgement in parts or [(None, model.judgement)]:
        judged = judgement.judged
        if judged is not None and judged.rate is not None:
            place = model.model_name, temperature, manner
            yield _Rate(place, judged.rate, judged.draft_tokens)


def _manner(judgement: Judgement) -> tuple[object, ...] | None:
    """The draft tokens per draft, and the method, if the plug-in tells it.

    None if nothing is judged, if that number varies, or if the rate of the method tells nothing.
    """
    if judgement.judged is None or judgement.judged.drafts <= 0:
        return None

    per_draft = judgement.judged.draft_tokens / judgement.judged.drafts
    tokens = round(per_draft)
    if abs(per_draft - tokens) >= _VARYING:
        return None

    found = judgement.evidence.speculation
    if found is None:
        return (tokens,) if tokens < _ONE_PASS_TOKENS else None

    return (
        tokens,
        found.method,
        found.adaptive_verification,
        found.rejection_sample_method,
        found.draft_sample_method,
    )
