"""Whether speculation pays. Only this module judges: a model as a whole and each of its temperatures.

The page, the report, ``/api/v1/status``, the metrics and the direct push read a ``Judgement`` and decide nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.analysis.advice import tokens_advice
from sidecar.analysis.draft_length import StepCosts, schedule, timed_advice

# vLLM cannot turn speculation off for single requests; the runbook SpecDecodeAcceptanceLowAtTemperature.md says more.
_LOSING: Final = "Send this traffic to pods that don't speculate, or speculate fewer tokens."
_CONFIDENCE: Final = 2.0  # standard errors by which a value must clear a threshold


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
class VerdictThresholds:
    """The thresholds of the verdicts, and the volume below which nothing is judged.

    Below ``net_negative`` (acceptance rate, 0 to 1) or ``slower`` (speedup) speculation loses; from ``break_even`` or
    ``faster`` on it wins. A verdict falls as soon as a threshold is crossed, and rises once the value is ``margin``
    above it. ``window`` is the length of the sliding window in seconds, ``min_share`` the share of the model's draft
    tokens that a temperature must have, ``coverage`` the share that must be attributed to requests.
    """

    net_negative: float = 0.5
    break_even: float = 0.65
    fewer_tokens: float = 0.4
    more_tokens: float = 0.8
    slower: float = 0.97
    faster: float = 1.05
    min_requests: int = 20
    min_drafts_per_second: float = 1.0
    min_share: float = 0.1
    coverage: float = 0.8
    window: float = 300.0
    margin: float = 0.02


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, in the value's unit."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a judgement is based on: one model's or one temperature's speculation over the sliding window.

    ``requests`` is None if requests were not counted (vLLM's own counters). ``acceptance`` is accepted / drafted,
    0 to 1; None without drafts, or if its error is too large. ``position_rates[p]`` is the acceptance rate at draft
    position p; empty if unknown. ``share`` is the part of the model's draft tokens, 0 to 1. ``speedup`` is plain time
    per token / actual; None without a reference.
    """

    requests: int | None = None
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    acceptance: float | None = None
    position_rates: tuple[float, ...] = ()
    share: float = 1.0
    speedup: Estimate | None = None
    costs: StepCosts | None = None
    costs_by_load: Mapping[int, StepCosts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one model or one temperature, with its evidence.

    ``by_acceptance`` is the rule of thumb's verdict, ``by_speedup`` the measured one; None if no speedup is known.
    """

    evidence: Evidence
    by_acceptance: Verdict = Verdict.INSUFFICIENT_DATA
    by_speedup: Verdict | None = None
    advice: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict in force: by speedup if it is known."""
        return self.by_acceptance if self.by_speedup is None else self.by_speedup

    @property
    def basis(self) -> Basis:
        """What ``verdict`` is based on."""
        return Basis.ACCEPTANCE if self.by_speedup is None else Basis.SPEEDUP

    @property
    def has_enough_data(self) -> bool:
        """Whether there is a verdict at all."""
        return self.verdict is not Verdict.INSUFFICIENT_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """What is known about one model: over all its engines, and by temperature if there is a request source.

    ``coverage`` is the share of its draft tokens that is attributed to requests, 0 to 1; None if unknown.
    """

    model_name: str
    whole: Evidence
    temperatures: Mapping[str, Evidence]
    coverage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudgement:
    """All judgements on one model. ``is_covered``: the temperatures represent nearly all of its traffic.

    ``temperatures`` is empty without a request source, and otherwise has every bucket, coldest first.
    """

    model_name: str
    whole: Judgement
    temperatures: Mapping[str, Judgement]
    is_covered: bool


class Judge:
    """Judges one server's models poll by poll; remembers the last verdicts, so that none flaps near a threshold."""

    def __init__(self, thresholds: VerdictThresholds) -> None:
        self.thresholds = thresholds  # may be replaced between two polls
        self._last: dict[tuple[str, str | None], Judgement] = {}

    def judge(self, models: Iterable[ModelEvidence]) -> tuple[ModelJudgement, ...]:
        """The judgements on all present models; a model that is not among them is forgotten."""
        before, self._last = self._last, {}
        return tuple(self._model(model, before) for model in models)

    def _model(self, model: ModelEvidence, before: Mapping[tuple[str, str | None], Judgement]) -> ModelJudgement:
        def judged(temperature: str | None, evidence: Evidence) -> Judgement:
            key = (model.model_name, temperature)
            self._last[key] = judge(evidence, self.thresholds, before.get(key, _NOTHING))
            return self._last[key]

        return ModelJudgement(
            model_name=model.model_name,
            whole=judged(None, model.whole),
            temperatures={temperature: judged(temperature, found) for temperature, found in model.temperatures.items()},
            is_covered=model.coverage is None or model.coverage >= self.thresholds.coverage,
        )


_NOTHING: Final = Judgement(evidence=Evidence())


def judge(evidence: Evidence, thresholds: VerdictThresholds, before: Judgement = _NOTHING) -> Judgement:
    """The judgement on ``evidence`` that follows ``before``."""
    if not _is_enough(evidence, thresholds, held=before.has_enough_data):
        return Judgement(evidence=evidence)
    by_acceptance, by_speedup, tokens = Verdict.INSUFFICIENT_DATA, None, None
    if evidence.acceptance is not None:
        by_acceptance = _ruled(
            before.by_acceptance,
            Estimate(evidence.acceptance),
            (thresholds.net_negative, thresholds.break_even),
            thresholds.margin,
        )
        tokens = _tokens_advice(evidence, thresholds)
    if evidence.speedup is not None:
        by_speedup = _ruled(
            before.by_speedup, evidence.speedup, (thresholds.slower, thresholds.faster), thresholds.margin
        )
    loses = (by_speedup or by_acceptance) is Verdict.NET_NEGATIVE
    return Judgement(
        evidence=evidence,
        by_acceptance=by_acceptance,
        by_speedup=by_speedup,
        advice=tokens or (_LOSING if loses else None),
    )


def _tokens_advice(evidence: Evidence, thresholds: VerdictThresholds) -> str | None:
    """By time per token if step times are known, else by acceptance."""
    rates = evidence.position_rates
    if evidence.costs is None:
        fewer, more = thresholds.fewer_tokens, thresholds.more_tokens
        return tokens_advice(evidence.acceptance or 0.0, rates, fewer=fewer, more=more)
    entries = schedule(rates, evidence.costs_by_load)
    by_load = f" By load: num_speculative_tokens_per_batch_size {[list(one) for one in entries]}." if entries else ""
    return f"{timed_advice(rates, evidence.costs) or ''}{by_load}".strip() or None


def _is_enough(evidence: Evidence, thresholds: VerdictThresholds, *, held: bool) -> bool:
    part = 0.5 if held else 1.0  # a verdict holds until the volume falls to half of what it required
    return (
        (evidence.requests is None or evidence.requests >= part * thresholds.min_requests)
        and evidence.drafts >= part * thresholds.min_drafts_per_second * thresholds.window
        and evidence.draft_tokens > 0
        and evidence.share >= part * thresholds.min_share
    )


def _ruled(before: Verdict | None, estimate: Estimate, lines: tuple[float, float], margin: float) -> Verdict:
    """The verdict on ``estimate``, which loses below the first of the ``lines`` and wins from the second on."""
    now = _plain(estimate.value, estimate.error, lines)
    if before not in _RISING:
        return now
    risen = _plain(estimate.value - margin, estimate.error, lines)
    return min(now, max(before, risen, key=_RISING.index), key=_RISING.index)


def _plain(value: float, error: float, lines: tuple[float, float]) -> Verdict:
    """Break-even between the lines, or if the error reaches across one."""
    if value + _CONFIDENCE * error < lines[0]:
        return Verdict.NET_NEGATIVE
    return Verdict.NET_POSITIVE if value - _CONFIDENCE * error >= lines[1] else Verdict.BREAK_EVEN
