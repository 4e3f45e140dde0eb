"""Judges whether speculation pays, for a model as a whole, its temperatures and its engines.

Only this module judges. The page, the report, the JSON, the metrics, the pod's alerts and the
direct push read a ``Judgement`` (``judgement.py``) and decide nothing; what is to alert someone
follows in ``alerts.py``.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.analysis.advice import Advice, Direction, advise
from sidecar.analysis.certainty.past import WINDOWS, Estimate
from sidecar.analysis.certainty.side import (
    NOWHERE,
    CertainSide,
    Line,
    Side,
    alarming,
    certain_side,
    needed,
)
from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.evidence import CONFIDENCE, Acceptance, Evidence
from sidecar.analysis.judgement import (
    Gate,
    Judgement,
    ModelJudgement,
    Undecided,
    Verdict,
    is_uncertain,
    verdict_of,
)
from sidecar.analysis.values import ModelValues
from sidecar.settings.groups import Thresholds

MARGIN: Final = 0.02  # a verdict rises once the value is this far above a threshold
# Standard errors below the threshold at which a measured loss begins, since someone is paged, and
# above it at which it ends. What they promise is simulated (``benchmarks/speedup_error``).
_LOSS_BEGINS: Final = 3.0
_LOSS_ENDS: Final = 1.0
# a window that was judged stays so until its traffic falls below this share of the gates
_KEPT: Final = 0.5
_COLLAPSED: Final = 0.05  # acceptance rate below which almost nothing is accepted
_RISING: Final = (Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE)
_NO_JUDGEMENT: Final = Judgement()
_TEMPERATURE: Final = "temperature"
_WHOLE: Final = ""  # all requests of a model

_Key = tuple[str, str, str]  # model, kind, and the temperature or engine


class Judge:
    """Judges the models poll by poll.

    Remembers the last verdicts, so that none flaps near a threshold.
    """

    def __init__(self, thresholds: Thresholds, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._thresholds = thresholds
        self._window = window
        self._last: dict[_Key, Judgement] = {}
        self.judged: Mapping[str, ModelJudgement] = {}  # the last judgements, by model

    def apply(self, thresholds: Thresholds) -> None:
        """Judges by these thresholds from now on.

        If they are new, no verdict depends on an earlier one.
        """
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self._last.clear()

    def forget(self, name: str) -> None:
        """Judges a model that speculates in another way without what it was judged before."""
        self._last = {key: last for key, last in self._last.items() if key[0] != name}
        self.judged = {key: judged for key, judged in self.judged.items() if key != name}

    def judge(self, models: Iterable[ModelValues], at: float) -> None:
        """Judges all present models at ``at``, Unix seconds.

        Forgets a model that is not among them, but no temperature of one that is: after a restart
        of vLLM there is no split for minutes.
        """
        models = tuple(models)
        before = self._last
        advised = {name: model.advice for name, model in self.judged.items()}
        self._last = {}
        self.judged = {
            model.name: self._model(model, before, advised.get(model.name), at) for model in models
        }
        self._last |= _remembered(before, self._last.keys(), self.judged.keys())

    def _model(
        self,
        model: ModelValues,
        before: Mapping[_Key, Judgement],
        advised: Advice | None,
        at: float,
    ) -> ModelJudgement:
        def judged(
            kind: str, name: str, evidence: Evidence, parts: Iterable[Judgement] | None = None
        ) -> Judgement:
            key = (model.name, kind, name)
            last = before.get(key, _NO_JUDGEMENT)
            self._last[key] = judge(
                evidence, self._thresholds, self._window, before=last, parts=parts, at=at
            )
            return self._last[key]

        temperatures = {
            name: judged(_TEMPERATURE, name, evidence)
            for name, evidence in model.temperatures.items()
        }
        engines = {
            engine.key.engine: judged("engine", engine.key.engine, engine.evidence)
            for engine in model.speculating
        }

        whole = judged(_WHOLE, "", model.whole, temperatures.values())

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
            temperatures=temperatures,
            engines=engines,
        )


class _Said(NamedTuple):
    """What a reader is told: the verdict, what it is based on, and whether it is certain."""

    verdict: Verdict = Verdict.INSUFFICIENT_DATA
    is_measured: bool = False
    is_undecided: bool = False
    has_collapsed: bool = False

    @classmethod
    def by(cls, judgement: Judgement) -> "_Said":
        """What a judgement told."""
        return cls.of(
            judgement.by_acceptance,
            judgement.by_speedup,
            judgement.undecided,
            has_collapsed=judgement.has_collapsed,
        )

    @classmethod
    def of(
        cls,
        by_acceptance: Verdict,
        by_speedup: Verdict | None,
        undecided: Undecided | None,
        *,
        has_collapsed: bool,
    ) -> "_Said":
        """What the judgement of these will tell; it is made once, with its date."""
        return cls(
            verdict_of(by_acceptance, by_speedup),
            by_speedup is not None,
            is_uncertain(by_speedup, undecided),
            has_collapsed,
        )


class _Course(NamedTuple):
    """Since when it has said the same, and which verdict that replaced."""

    since: float | None
    was: Verdict | None


def _course(said: _Said, last: Judgement, at: float | None) -> _Course:
    before = _Said.by(last)
    if at is None or (said == before and last.since is not None and last.since <= at):
        return _Course(last.since, last.was)

    is_other = before.verdict in _RISING and before.verdict is not said.verdict
    has_same_basis = said.is_measured is before.is_measured
    return _Course(at, before.verdict if has_same_basis and is_other else None)


def _remembered(
    before: Mapping[_Key, Judgement], judged: Container[_Key], names: Container[str]
) -> dict[_Key, Judgement]:
    """Where the rates of the models' temperatures stood that are not ``judged`` now."""
    return {
        key: Judgement(loses=last.loses, wins=last.wins)
        for key, last in before.items()
        if key not in judged and key[0] in names and key[1] == _TEMPERATURE
    }


def judge(
    evidence: Evidence,
    thresholds: Thresholds,
    window: float = 0.0,
    *,
    before: Judgement = _NO_JUDGEMENT,
    parts: Iterable[Judgement] | None = None,
    at: float | None = None,
) -> Judgement:
    """The judgement on ``evidence`` at ``at``, following ``before``.

    ``parts`` are those on a whole model's temperatures; None if it is on no whole model.
    Requires ``min_drafts_per_second`` over ``window`` seconds. The sliding window decides or, if it
    has too little traffic, the last hour. By acceptance there is a verdict once it is certain on
    which side of the thresholds the rate is (``certainty``), and it changes once that is certain.
    One by the speedup falls as soon as a threshold is crossed, by three standard errors if it is a
    loss, and rises once it is clearly above it. There is none where the acceptance is synthetic.
    """
    if evidence.is_synthetic:
        since, was = _course(_Said(), before, at)
        return Judgement(evidence=evidence, is_known=True, since=since, was=was)

    judged = _with_enough_traffic(evidence, thresholds, window, before)
    if judged is None or judged.rate is None:
        gate = None
        if evidence.window.draft_tokens:
            gate = _gate(evidence.window, thresholds, window)
        is_known = bool(_Known(evidence, evidence.hour, thresholds).estimates())
        since, was = _course(_Said(), before, at)
        return Judgement(
            evidence=evidence,
            is_known=True,
            gate=gate,
            loses=before.loses if is_known else NOWHERE,
            wins=before.wins if is_known else NOWHERE,
            since=since,
            was=was,
        )

    known = _Known(evidence, judged, thresholds)
    loses = known.certain_side(before.loses, known.loses)
    wins = known.certain_side(before.wins, known.wins)
    is_ruled = evidence.is_ruled
    by_acceptance = _by_acceptance(loses, wins) if is_ruled else Verdict.INSUFFICIENT_DATA

    by_speedup = None
    held_below = None
    speedup = evidence.speedup
    if speedup is not None:
        lines = Lines(thresholds.speedup_net_negative, thresholds.speedup_net_positive)
        by_speedup, held_below = _steady(before.by_speedup, speedup.ratio, speedup.error, lines)

    is_open = is_ruled and by_speedup is None and by_acceptance not in _RISING
    undecided = known.undecided(loses) if is_open else None
    has_collapsed = parts is not None and _has_collapsed(evidence, judged, parts)
    said = _Said.of(by_acceptance, by_speedup, undecided, has_collapsed=has_collapsed)
    since, was = _course(said, before, at)
    return Judgement(
        evidence=evidence,
        is_known=True,
        judged=judged,
        by_acceptance=by_acceptance,
        by_speedup=by_speedup,
        loses=loses,
        wins=wins,
        undecided=undecided,
        is_kept=_is_kept(by_acceptance, judged.rate, thresholds),
        is_low=None if loses.side is None else loses.side is Side.BELOW,
        held_below=held_below,
        has_collapsed=has_collapsed,
        wanted_tokens=_wanted_tokens(judged.rate, before.wanted_tokens, thresholds),
        since=since,
        was=was,
    )


def _by_acceptance(loses: CertainSide, wins: CertainSide) -> Verdict:
    if loses.side is Side.BELOW:
        return Verdict.NET_NEGATIVE
    if wins.side is Side.ABOVE:
        return Verdict.NET_POSITIVE
    if loses.side is Side.ABOVE and wins.side is Side.BELOW:
        return Verdict.BREAK_EVEN
    return Verdict.INSUFFICIENT_DATA


def _is_kept(verdict: Verdict, rate: float, thresholds: Thresholds) -> bool:
    """Whether the rate is beyond a threshold by which it had another verdict."""
    lines = Lines(thresholds.acceptance_net_negative, thresholds.acceptance_break_even)
    return verdict in _RISING and _at_once(rate, 0.0, lines) is not verdict


class _Known:
    """What is known of an acceptance rate: of the past or, without one, of the judged window."""

    def __init__(self, evidence: Evidence, judged: Acceptance, thresholds: Thresholds) -> None:
        self.loses = alarming(thresholds.acceptance_net_negative)
        self.wins = Line(thresholds.acceptance_break_even)
        self._past = evidence.past
        self._judged = judged
        self._least = thresholds.min_requests
        self._estimates: dict[float, Sequence[Estimate]] = {}  # each line asks for the same

    def certain_side(self, before: CertainSide, line: Line) -> CertainSide:
        """Where the rate stands now; nowhere if all that is known of it was forgotten."""
        at = self._past.at if self._past is not None else -math.inf
        if self._past is not None and before.since > at:
            before = NOWHERE  # the clock was set back
        if not self.estimates(before.since) and not self.estimates():
            return NOWHERE
        return certain_side(before, line, self.estimates, at)

    def estimates(self, since: float = -math.inf) -> Sequence[Estimate]:
        """What is known since then, the shortest window first."""
        if since not in self._estimates:
            self._estimates[since] = self._made(since)
        return self._estimates[since]

    def _made(self, since: float) -> Sequence[Estimate]:
        judged = self._judged
        if self._past is not None:
            return tuple(self._past.estimates(self._least, since))
        if judged.rate is None or not judged.requests:
            return ()
        error = Spread().error(judged.requests)
        return (Estimate(judged.seconds, judged.requests, judged.rate, error),)

    def undecided(self, loses: CertainSide) -> Undecided | None:
        """What keeps the verdict from being reached; None if no window has enough requests."""
        line = self.loses if loses.side is None else self.wins
        known = self.estimates()
        if not known:
            return None

        best = known[-1]
        more = needed(line, best)
        is_soon = best.seconds + more <= WINDOWS[-1]
        return Undecided(
            rate=best.rate,
            error=best.error,
            seconds=best.seconds,
            line=line.value,
            needed=more if is_soon else None,
        )


def _wanted_tokens(
    rate: float, before: Direction | None, thresholds: Thresholds
) -> Direction | None:
    """Whether the acceptance rate asks for fewer or more draft tokens, so that it does not flap."""
    fewer_below = thresholds.acceptance_fewer_tokens
    if before is Direction.FEWER:
        fewer_below += MARGIN

    more_above = thresholds.acceptance_more_tokens
    if before is Direction.MORE:
        more_above -= MARGIN

    if rate < fewer_below:
        return Direction.FEWER
    if rate > more_above:
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
        was_judged = before.judged is not None and before.judged is judged_before
        part = _KEPT if was_judged else 1.0
        return found.draft_tokens > 0 and _gate(found, thresholds, window, part) is None

    if is_enough(evidence.window, before.evidence.window):
        return evidence.window

    drafts_now = evidence.window.draft_tokens > 0
    if drafts_now and is_enough(evidence.hour, before.evidence.hour):
        return evidence.hour
    return None


def _gate(
    acceptance: Acceptance, thresholds: Thresholds, window: float, part: float = 1.0
) -> Gate | None:
    """The first threshold of which ``acceptance`` does not reach ``part``.

    None if it reaches all.
    """
    if (acceptance.requests or 0) < part * thresholds.min_requests:
        return Gate("min_requests", thresholds.min_requests)
    if acceptance.drafts < part * thresholds.min_drafts_per_second * window:
        return Gate("min_drafts_per_second", thresholds.min_drafts_per_second)
    if acceptance.share < part * thresholds.min_bucket_share:
        return Gate("min_bucket_share", thresholds.min_bucket_share)
    return None


def _has_collapsed(evidence: Evidence, judged: Acceptance, parts: Iterable[Judgement]) -> bool:
    """Whether almost no draft token is accepted, not even at the first position.

    Tokens that one of its ``parts`` accepts were drafted by a draft that fits.
    """
    if evidence.is_adaptive:
        return False
    if any((part.acceptance or 0) >= _COLLAPSED for part in parts):
        return False

    position_rates = judged.position_rates
    if not position_rates:
        return False

    at_first_position = position_rates[0]
    return (judged.rate or 0) < _COLLAPSED and at_first_position < _COLLAPSED


@dataclass(frozen=True, slots=True)
class Lines:
    """A value ``loses`` below the first line and ``wins`` from the second one on."""

    loses: float
    wins: float


def _steady(
    before: Verdict | None, value: float, error: float, lines: Lines
) -> tuple[Verdict, float | None]:
    """The verdict on ``value``, and the line that holds it, if any.

    A line holds the verdict although the value is above it again, by less than the margin; a loss
    also by less than an error.
    """
    now = _at_once(value, error, lines)
    if before not in _RISING:
        return now, None

    if before is Verdict.NET_NEGATIVE and value < lines.loses + max(_LOSS_ENDS * error, MARGIN):
        return before, lines.loses if value >= lines.loses else None

    risen = _at_once(value - MARGIN, error, lines)
    if now in _RISING and risen in _RISING:
        allowed = max(before, risen, key=_RISING.index)
        verdict: Verdict = min(now, allowed, key=_RISING.index)
    elif risen is before or (before is Verdict.BREAK_EVEN and now is Verdict.NET_POSITIVE):
        verdict = before
    else:
        verdict = now

    if verdict is now:
        return verdict, None
    if verdict is Verdict.NET_NEGATIVE:
        return verdict, lines.loses
    return verdict, lines.wins


def _at_once(value: float, error: float, lines: Lines) -> Verdict:
    """The verdict alone: insufficient data if the interval reaches across a line."""
    low = value - CONFIDENCE * error
    high = value + CONFIDENCE * error
    if value + _LOSS_BEGINS * error < lines.loses:
        return Verdict.NET_NEGATIVE
    if low >= lines.wins:
        return Verdict.NET_POSITIVE
    if lines.loses <= low and high < lines.wins:
        return Verdict.BREAK_EVEN
    return Verdict.INSUFFICIENT_DATA
