"""What the direct push remembers of earlier reports; with Prometheus, the rules look it up."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.report import ModelReport, Report

_DAY: Final = 86_400.0  # seconds for which a rate that was not low counts
# A method that nothing names and that drafts so many tokens at once drafts none of them singly.
_ONE_PASS_TOKENS: Final = 9
_VARYING: Final = 0.1  # draft tokens per draft this far from a whole number come from several

_Place = tuple[str, str | None, tuple[object, ...]]  # model, temperature (None: all), manner


@dataclass(frozen=True, slots=True)
class _Rate:
    """One acceptance rate that is judged, and whether it is low."""

    place: _Place
    is_low: bool
    loses: bool


class Past:
    """When the push began, whether an engine hung, and which rates were not low within a day.

    Bounded: a rate that was not low for a day is forgotten, and there is one for each model,
    temperature and manner of drafting.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # Unix seconds of the first report; None before it
        self.was_stalled = False  # whether an engine was stalled at the last good poll
        self._not_low: dict[_Place, float] = {}  # when each rate was last not low

    def observe(self, report: Report) -> None:
        """Takes in a report, each only once and in their order."""
        if self.began is None:
            self.began = report.at

        if report.scrape.up:
            self.was_stalled = bool(report.health.stalled)

        since = report.at - _DAY
        self._not_low = {place: at for place, at in self._not_low.items() if at > since}
        for model in report.models:
            for rate in _rates(model):
                if not rate.is_low:
                    self._not_low[rate.place] = report.at

    def has_dropped(self, model: ModelReport) -> bool:
        """Whether a rate that was not low within a day is low now, and loses by it.

        It is compared with itself: the same temperature, drafted in the same manner.
        """
        return any(
            rate.is_low and rate.loses and rate.place in self._not_low for rate in _rates(model)
        )


def _rates(model: ModelReport) -> Iterator[_Rate]:
    """The rates by temperature; without a split, that of the whole model."""
    manner = _manner(model.judgement)
    if manner is None:
        return

    judged = [part for part in model.temperatures if part.judgement.judged is not None]
    for part in judged:
        place = model.model_name, part.temperature, manner
        yield _rate(place, part.judgement)

    if not judged and model.judgement.judged is not None:
        yield _rate((model.model_name, None, manner), model.judgement)


def _rate(place: _Place, judgement: Judgement) -> _Rate:
    return _Rate(place, judgement.is_low, judgement.verdict is Verdict.NET_NEGATIVE)


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
