"""What the direct push remembers of earlier reports; with Prometheus, the rules look it up."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.findings.not_speculating import NotSpeculating
from sidecar.analysis.judgement import Judgement
from sidecar.analysis.report import ModelReport, Report

_DAY: Final = 86_400.0  # seconds for which a rate is remembered
_BRIDGED: Final = 180.0  # seconds for which what was last known holds on, as in the rules
_MEMORY: Final = 28_800.0  # seconds over which mean and variance are taken, as in the rules
_LEAST_SPREAD: Final = 0.03  # of a rate that has hardly any past
_SPREADS: Final = 3.0  # a rate fell if it is so many spreads below its past, ...
_LEAST_FALL, _SURE_FALL = 0.05, 0.15  # ... by the first at least; by the second in any case
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
    """A rate's mean and variance up to ``at``, Unix seconds."""

    at: float
    mean: float
    variance: float = _LEAST_SPREAD**2

    def followed_by(self, rate: float, at: float) -> "_Usual":
        weight = min(max(at - self.at, 0.0) / _MEMORY, 1.0)
        off = rate - self.mean
        variance = (1 - weight) * (self.variance + weight * off**2)
        return _Usual(at, self.mean + weight * off, variance)


def drafts_nothing(model: ModelReport) -> bool:
    """Whether it is found to draft nothing although it should."""
    return any(isinstance(finding, NotSpeculating) for finding in model.findings)


class _LastKnown:
    """Each model as it was when something of it was last known, for at most three minutes.

    ``knows`` says whether a report has it.
    """

    def __init__(self, knows: Callable[[ModelReport], bool]) -> None:
        self._knows = knows
        self._known: dict[str, tuple[float, ModelReport]] = {}  # by name: when, Unix seconds

    def observe(self, report: Report) -> None:
        since = report.at - _BRIDGED
        self._known = {
            name: (at, model)
            for name, (at, model) in self._known.items()
            if since <= at <= report.at  # else the clock was set back
        }
        for model in report.models:
            if self._knows(model):
                self._known[model.model_name] = report.at, model

    def of(self, model: ModelReport) -> ModelReport:
        """The model itself if that was not known within three minutes."""
        _, known = self._known.get(model.model_name, (0.0, model))
        return known


class Past:
    """When the push began, whether an engine hung, and how each acceptance rate was within a day.

    After a restart of vLLM, what the plug-in tells is unknown for a while. Until it is known again,
    ``replies``, ``split`` and ``drafting`` have each model as it was when this was known: how its
    replies end, its temperatures, and whether it drafts.

    Bounded: a rate that was not seen for a day is forgotten, and there is one for each model,
    temperature and manner of drafting.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # Unix seconds of the first report; None before it
        self.was_stalled = False  # whether an engine was stalled at the last good poll
        self._usual: dict[_Place, _Usual] = {}
        self.replies = _LastKnown(lambda model: model.endings is not None)
        self.split = _LastKnown(lambda model: bool(model.temperatures))
        self.drafting = _LastKnown(
            lambda model: drafts_nothing(model) or model.judgement.judged is not None
        )

    def observe(self, report: Report) -> None:
        """Takes in a report, each only once and in their order."""
        if self.began is None:
            self.began = report.at

        if report.scrape.up:
            self.was_stalled = bool(report.health.stalled)

        since = report.at - _DAY
        self._usual = {place: usual for place, usual in self._usual.items() if usual.at > since}
        for model in report.models:
            for rate in _rates(model):
                usual = self._usual.get(rate.place, _Usual(report.at, rate.value))
                self._usual[rate.place] = usual.followed_by(rate.value, report.at)

        for known in (self.replies, self.split, self.drafting):
            known.observe(report)

    def has_dropped(self, model: ModelReport) -> bool:
        """Whether the model's rate is below what each temperature's own past gives today.

        Each temperature is compared with itself, drafted in the same manner, and counts by its
        share of today's draft tokens: a change of the mix is no drop.
        """
        known = [rate for rate in _rates(self.split.of(model)) if rate.place in self._usual]
        rates = [(rate, self._usual[rate.place]) for rate in known]
        tokens = sum(rate.draft_tokens for rate, _ in rates)
        if not tokens:
            return False

        fall = sum(rate.draft_tokens * (usual.mean - rate.value) for rate, usual in rates)
        spread = sum(rate.draft_tokens * math.sqrt(usual.variance) for rate, usual in rates)
        least = min(max(_SPREADS * spread / tokens, _LEAST_FALL), _SURE_FALL)
        return fall / tokens > least


def _rates(model: ModelReport) -> Iterator[_Rate]:
    """The rates by temperature; without a split, that of the whole model."""
    manner = _manner(model.judgement)
    if manner is None:
        return

    parts: list[tuple[str | None, Judgement]] = [
        (part.temperature, part.judgement)
        for part in model.temperatures
        if part.judgement.judged is not None
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
