"""Whether speculation pays, for a model as a whole, its temperatures and its engines.

Only this module judges. The page, the report, the JSON, the metrics, the pod's alerts and the
direct push read a ``Judgement`` and decide nothing. ``Breaches`` are for the direct push alone:
Prometheus compares these values over longer times.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sidecar.analysis.advice import Advice, Direction, advise
from sidecar.analysis.evidence import CONFIDENCE, Acceptance, Evidence, ModelEvidence
from sidecar.settings.groups import Thresholds

MARGIN: Final = 0.02  # a verdict rises once the value is this far above a threshold
# a window that was judged stays so until its traffic falls below this share of the gates
_KEPT: Final = 0.5
_COLLAPSED: Final = 0.05  # acceptance rate below which almost nothing is accepted
HELD: Final = 60.0  # seconds that judgements stay in force while polls fail


class Verdict(StrEnum):
    """The effect of speculation on the time that generation takes."""

    NET_POSITIVE = "net_positive"
    BREAK_EVEN = "break_even"
    NET_NEGATIVE = "net_negative"
    INSUFFICIENT_DATA = "insufficient_data"


_RISING: Final = (Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE)


class Basis(StrEnum):
    """What a verdict is based on."""

    SPEEDUP = "speedup"  # plain time per token / actual, if plain decoding was measured
    ACCEPTANCE = "acceptance"  # the rule of thumb, if nothing better is known


@dataclass(frozen=True, slots=True)
class Gate:
    """A setting in ``thresholds`` that requires more traffic than there is, and its value."""

    threshold: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one model, temperature or engine, with its evidence.

    ``is_known`` is False if nothing was judged, for example after polls have failed for long.
    ``judged`` is the window that was judged, None below the gates; ``gate`` is the first of those
    that keeps it from being judged. ``by_acceptance`` is the verdict by the rule of thumb,
    ``by_speedup`` the measured one, None if no speedup is known. ``held_below`` is the threshold
    that the value has crossed again, if only the margin keeps the verdict from rising. ``is_low``:
    the acceptance rate is below its threshold or, if it decides, not yet clearly above it again.
    ``has_collapsed``, of a model as a whole: a fault keeps drafts from being accepted.
    ``wanted_tokens``: the acceptance rate is past the threshold for fewer or more draft tokens, or
    was and is not yet clearly back; None between the two.
    """

    evidence: Evidence = field(default_factory=Evidence)
    is_known: bool = False
    judged: Acceptance | None = None
    gate: Gate | None = None
    by_acceptance: Verdict = Verdict.INSUFFICIENT_DATA
    by_speedup: Verdict | None = None
    held_below: float | None = None
    is_low: bool = False
    has_collapsed: bool = False
    wanted_tokens: Direction | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict in force: by speedup if it is known."""
        return self.by_acceptance if self.by_speedup is None else self.by_speedup

    @property
    def basis(self) -> Basis:
        """What ``verdict`` is based on."""
        by_time = self.by_speedup is not None or not self.evidence.is_ruled
        return Basis.SPEEDUP if by_time else Basis.ACCEPTANCE

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted over the window that was judged, 0 to 1; None below the gates."""
        return self.judged.rate if self.judged is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaches:
    """Those of a model's other values that are past the threshold of the same name.

    All others are None.
    """

    acceptance_p10: float | None = None
    latency_gap_growth: float | None = None
    kv_cache_usage: float | None = None  # the peak, while requests wait for capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudgement:
    """All judgements on one model; ``temperatures`` and ``engines`` have those of its evidence.

    ``advice`` is on the number of draft tokens; None below the gates.
    """

    whole: Judgement = field(default_factory=Judgement)
    advice: Advice | None = None
    breaches: Breaches = field(default_factory=Breaches)
    temperatures: Mapping[str, Judgement] = field(default_factory=dict)
    engines: Mapping[str, Judgement] = field(default_factory=dict)


class Judge:
    """Judges the models poll by poll.

    Remembers the last verdicts, so that none flaps near a threshold.
    """

    def __init__(self, thresholds: Thresholds, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._thresholds = thresholds
        self._window = window
        self._last: dict[tuple[str, str, str], Judgement] = {}
        self._judged: Mapping[str, ModelJudgement] = {}
        self._judged_at = -math.inf

    def apply(self, thresholds: Thresholds) -> None:
        """Judges by these thresholds from now on.

        If they are new, no verdict depends on an earlier one.
        """
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self._last.clear()

    def judge(self, models: Iterable[ModelEvidence], at: float) -> None:
        """Judges all present models at ``at``, Unix seconds.

        Forgets a model that is not among them.
        """
        before = self._last
        advised = {name: model.advice for name, model in self._judged.items()}
        self._last = {}
        self._judged = {
            model.model_name: self._model(model, before, advised.get(model.model_name))
            for model in models
        }
        self._judged_at = at

    def held(self, now: float, *, fresh: bool) -> Mapping[str, ModelJudgement]:
        """The last judgements, by model.

        Without a ``fresh`` poll, empty if they are more than a minute old.
        """
        return self._judged if fresh or 0 <= now - self._judged_at <= HELD else {}

    def _model(
        self,
        model: ModelEvidence,
        before: Mapping[tuple[str, str, str], Judgement],
        advised: Advice | None,
    ) -> ModelJudgement:
        def judged(kind: str, name: str, evidence: Evidence) -> Judgement:
            key = (model.model_name, kind, name)
            last = before.get(key, _NOTHING)
            self._last[key] = judge(evidence, self._thresholds, self._window, before=last)
            return self._last[key]

        temperatures = {
            name: judged("temperature", name, found) for name, found in model.temperatures.items()
        }
        engines = {name: judged("engine", name, found) for name, found in model.engines.items()}

        whole = judged("", "", model.whole)
        # tokens that are accepted at any temperature were drafted by a draft that fits
        spared = any((part.acceptance or 0) >= _COLLAPSED for part in temperatures.values())
        whole = replace(whole, has_collapsed=_has_collapsed(whole) and not spared)

        advice = None
        if whole.judged is not None:
            advice = advise(
                whole.evidence,
                whole.judged,
                self._thresholds,
                wanted=whole.wanted_tokens,
                before=advised,
            )

        return ModelJudgement(
            whole=whole,
            advice=advice,
            breaches=_breaches(model, whole, self._thresholds),
            temperatures=temperatures,
            engines=engines,
        )


def _breaches(model: ModelEvidence, whole: Judgement, thresholds: Thresholds) -> Breaches:
    """A P10 counts where the acceptance rate decides."""
    is_judged, peak = whole.judged is not None, model.kv_cache_peak
    p10 = model.acceptance_p10 if is_judged and model.whole.is_ruled else None
    growth = model.latency_gap_growth if is_judged else None
    has_grown = growth is not None and growth > thresholds.latency_gap_growth

    return Breaches(
        acceptance_p10=p10 if p10 is not None and p10 < thresholds.acceptance_p10 else None,
        latency_gap_growth=growth if has_grown else None,
        kv_cache_usage=peak if peak is not None and peak > thresholds.kv_cache_usage else None,
    )


_NOTHING: Final = Judgement()


def judge(
    evidence: Evidence,
    thresholds: Thresholds,
    window: float = 0.0,
    *,
    before: Judgement = _NOTHING,
) -> Judgement:
    """The judgement on ``evidence``, following ``before``.

    Requires ``min_drafts_per_second`` over ``window`` seconds. The sliding window decides or, if it
    has too little traffic, the last hour. A verdict falls as soon as a threshold is crossed, and
    rises once the value is clearly above it.
    """
    judged = _with_enough_traffic(evidence, thresholds, window, before)
    if judged is None or judged.rate is None:
        gate = _gate(evidence.window, thresholds, window) if evidence.window.draft_tokens else None
        return Judgement(evidence=evidence, is_known=True, gate=gate)

    by_acceptance = Verdict.INSUFFICIENT_DATA
    by_speedup = None
    held_below = None
    if evidence.is_ruled:
        lines = Lines(thresholds.acceptance_net_negative, thresholds.acceptance_break_even)
        by_acceptance, held_below = _steady(before.by_acceptance, judged.rate, 0.0, lines)
    if evidence.speedup is not None:
        lines = Lines(thresholds.speedup_net_negative, thresholds.speedup_net_positive)
        ratio = evidence.speedup.ratio
        by_speedup, held_below = _steady(before.by_speedup, ratio, evidence.speedup.error, lines)

    stays_low = by_speedup is None and by_acceptance is Verdict.NET_NEGATIVE
    return Judgement(
        evidence=evidence,
        is_known=True,
        judged=judged,
        by_acceptance=by_acceptance,
        by_speedup=by_speedup,
        is_low=stays_low or judged.rate < thresholds.acceptance_net_negative,
        held_below=held_below,
        wanted_tokens=_wanted_tokens(judged.rate, before.wanted_tokens, thresholds),
    )


def _wanted_tokens(
    rate: float, before: Direction | None, thresholds: Thresholds
) -> Direction | None:
    """Whether the acceptance rate asks for fewer or more draft tokens, so that it does not flap."""
    kept_for_fewer = MARGIN if before is Direction.FEWER else 0.0
    kept_for_more = MARGIN if before is Direction.MORE else 0.0
    if rate < thresholds.acceptance_fewer_tokens + kept_for_fewer:
        return Direction.FEWER
    if rate > thresholds.acceptance_more_tokens - kept_for_more:
        return Direction.MORE
    return None


def _with_enough_traffic(
    evidence: Evidence, thresholds: Thresholds, window: float, before: Judgement
) -> Acceptance | None:
    """The window to judge; None if none has enough traffic.

    The hour needs as many drafts and requests as the sliding window, and drafts within that. The
    one that was judged before needs only ``_KEPT`` of them, so that the choice does not flap.
    """

    def is_enough(found: Acceptance, judged_before: Acceptance) -> bool:
        part = _KEPT if before.judged is not None and before.judged is judged_before else 1.0
        return found.draft_tokens > 0 and not _gate(found, thresholds, window, part)

    if is_enough(evidence.window, before.evidence.window):
        return evidence.window
    drafts_now = evidence.window.draft_tokens > 0
    return evidence.hour if drafts_now and is_enough(evidence.hour, before.evidence.hour) else None


def _gate(
    acceptance: Acceptance, thresholds: Thresholds, window: float, part: float = 1.0
) -> Gate | None:
    """The first threshold of which ``acceptance`` does not reach ``part``.

    None if it reaches all.
    """
    gates = {
        "min_requests": (acceptance.requests or 0, thresholds.min_requests),
        "min_drafts_per_second": (acceptance.drafts, thresholds.min_drafts_per_second * window),
        "min_bucket_share": (acceptance.share, thresholds.min_bucket_share),
    }
    failed = (name for name, (value, least) in gates.items() if value < part * least)
    return next((Gate(name, getattr(thresholds, name)) for name in failed), None)


def _has_collapsed(judgement: Judgement) -> bool:
    if judgement.judged is None or judgement.evidence.is_adaptive:
        return False
    rates = judgement.judged.position_rates
    return (judgement.acceptance or 0) < _COLLAPSED and bool(rates) and rates[0] < _COLLAPSED


@dataclass(frozen=True, slots=True)
class Lines:
    """A value ``loses`` below the first line and ``wins`` from the second one on."""

    loses: float
    wins: float


def _steady(
    before: Verdict | None, value: float, error: float, lines: Lines
) -> tuple[Verdict, float | None]:
    """The verdict on ``value``, and the line that holds it, if any.

    A line holds the verdict although the value is above it again, by less than the margin.
    """
    now = _at_once(value, error, lines)
    if before not in _RISING:
        return now, None

    risen = _at_once(value - MARGIN, error, lines)
    allowed = max(before, risen, key=_RISING.index)
    verdict = min(now, allowed, key=_RISING.index)
    if verdict is now:
        return verdict, None
    return verdict, lines.loses if verdict is Verdict.NET_NEGATIVE else lines.wins


def _at_once(value: float, error: float, lines: Lines) -> Verdict:
    """The verdict alone: break-even between the lines, or if the error reaches across one."""
    if value + CONFIDENCE * error < lines.loses:
        return Verdict.NET_NEGATIVE
    if value - CONFIDENCE * error >= lines.wins:
        return Verdict.NET_POSITIVE
    return Verdict.BREAK_EVEN
