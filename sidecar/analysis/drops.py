"""Whether an acceptance rate has dropped: it is below what it was within a day."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.judgement import Judgement, ModelJudgement

_DAY: Final = 86_400.0  # seconds for which a rate is remembered
_BRIDGED: Final = 360.0  # seconds for which what was last known holds on, as in the rules
_LEAST_STEP: Final = 15.0  # seconds between two values that are taken in
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
        return sum(value for _, value in self.recent) / len(self.recent)

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


class DropWatch:
    """How each acceptance rate was within a day: of each temperature, or of a model as a whole.

    After a restart of vLLM no temperature is judged for a while: until it is, or for six minutes,
    it counts as it was.

    Bounded: a rate that was not seen for a day is forgotten, and there is one for each model,
    temperature and manner of drafting.
    """

    def __init__(self) -> None:
        self._at = -math.inf
        self._usual: dict[_Place, _Usual] = {}
        self._lately: dict[tuple[str, str], tuple[float, Judgement]] = {}  # by model, temperature

    def observe(self, at: float, judged: Mapping[str, ModelJudgement]) -> None:
        """Takes in the judgements of a good poll at ``at``, by model."""
        if 0 <= at - self._at < _LEAST_STEP:
            return

        self._at = at
        self._lately = {
            place: one for place, one in self._lately.items() if at - _BRIDGED < one[0] <= at
        }
        self._usual = {place: one for place, one in self._usual.items() if one.at > at - _DAY}
        for name, model in judged.items():
            for temperature, judgement in _known(model).items():
                self._lately[name, temperature] = at, judgement
            for rate in self._rates(name, model):
                usual = self._usual.get(rate.place)
                if usual is None:
                    self._usual[rate.place] = _Usual.first(rate.value, at)
                else:
                    self._usual[rate.place] = usual.followed_by(rate.value, at)

    def has_dropped(self, name: str, model: ModelJudgement) -> bool:
        """Whether a model's rate is below what each temperature's own past gives today.

        Each temperature is compared with itself, drafted in the same manner, and counts by its
        share of today's draft tokens: a change of the mix is no drop.
        """
        rates = [
            (rate, self._usual[rate.place])
            for rate in self._rates(name, model)
            if rate.place in self._usual
        ]
        tokens = sum(rate.draft_tokens for rate, _ in rates)
        if not tokens:
            return False

        fall = sum(rate.draft_tokens * usual.fall for rate, usual in rates)
        spread = sum(rate.draft_tokens * math.sqrt(usual.variance) for rate, usual in rates)
        least = min(max(_SPREADS * spread / tokens, _LEAST_FALL), _SURE_FALL)
        return fall / tokens > least

    def _rates(self, name: str, model: ModelJudgement) -> Iterator[_Rate]:
        """The rates of the model's temperatures; if none is judged, that of the whole model."""
        manner = _manner(model.whole)
        if manner is None:
            return

        parts: dict[str | None, Judgement] = {
            label: one for (of, label), (_, one) in self._lately.items() if of == name
        }
        parts.update(_known(model))
        for temperature, judgement in (parts or {None: model.whole}).items():
            judged = judgement.judged
            if judged is not None and judged.rate is not None:
                yield _Rate((name, temperature, manner), judged.rate, judged.draft_tokens)


def _known(model: ModelJudgement) -> dict[str, Judgement]:
    """The temperatures that are judged: a split is there before it has passed their gates."""
    return {
        label: judgement
        for label, judgement in model.temperatures.items()
        if judgement.judged is not None
    }


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
