"""Why speculation loses, or what would make it gain more: each finding with its evidence, for one model.

Pure: a finding follows from the model's report alone. No two explain the same loss, so each kind of cause yields one at
most: a fault, one engine, the sampling of drafts, a group of requests, the number of draft tokens.
"""

from collections.abc import Iterator, Mapping
from math import hypot
from typing import Final

from sidecar.analysis.advice import Advice, Direction, Finding, FindingCode
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.analysis.split.strata import Sums
from sidecar.analysis.split.tallies import GroupReport
from sidecar.analysis.verdict import Verdict
from sidecar.engine.methods import drafts_with_a_model, honours_draft_sampling
from sidecar.engine.names import Gauge
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds

_CLEARLY: Final = 0.05  # a difference of acceptance rates that matters
_CONFIDENCE: Final = 2.0  # standard errors
_MOST_FILTERED: Final = 0.5  # share of the hot draft tokens up to which the draft's sampling can be the cause
_ENOUGH_TOKENS: Final = 1000  # decoded without a draft
_ENOUGH_STEPS: Final = 1000  # at a load
_GREEDY: Final = "0"  # the temperature's label


_BY_TABLE: Final = {
    "prompt_tokens": FindingCode.LONG_PROMPTS,
    "output": FindingCode.STRUCTURED_OUTPUT,
    "adapter": FindingCode.ADAPTER,
    "sampling": FindingCode.SAMPLING,
}


def findings(model: ModelReport, temperatures: Mapping[str, Sums], thresholds: Thresholds) -> tuple[Finding, ...]:
    """The findings on a model, the most expensive first. ``temperatures`` are the finished requests of the window."""
    faults = [*_not_speculating(model), *_mismatch(model)]
    if faults:
        return tuple(faults[:1])
    hot = [*_greedy_drafting(model, temperatures, thresholds)]
    engine = [*_one_engine(model)]
    groups = sorted(_groups(model), key=_cost)[:1]
    if hot and groups and groups[0].code is FindingCode.SAMPLING:
        groups = []  # both say that hot requests accept less
    if engine:
        groups = []  # its requests may be the group's
    length = [] if hot else [*_load(model), *_length(model)][:1]
    return tuple(sorted([*hot, *engine, *groups, *length], key=_cost))


def _cost(finding: Finding) -> float:
    return -finding.cost


def _not_speculating(model: ModelReport) -> Iterator[Finding]:
    """A model is loaded to draft, the engine decodes, and nothing is drafted although K is above 0."""
    for engine in model.engines:
        speculation = engine.speculation
        if speculation is None or not drafts_with_a_model(speculation.method):
            continue
        running = round(max(engine.gauges.get(Gauge.REQUESTS_RUNNING, 1), 1))
        scheduled = [tokens for first, last, tokens in speculation.schedule if first <= running <= last]
        drafts = scheduled[0] if scheduled else speculation.num_speculative_tokens
        if engine.acceptance is None and engine.undrafted_tokens >= _ENOUGH_TOKENS and drafts > 0:
            yield Finding(
                code=FindingCode.NOT_SPECULATING, where=(engine.key.engine,), value=engine.undrafted_tokens, cost=1.0
            )


def _mismatch(model: ModelReport) -> Iterator[Finding]:
    judged = model.judgement.judged
    if model.judgement.has_collapsed and judged is not None:
        rate = judged.rate
        yield Finding(code=FindingCode.MISMATCH, value=rate, requests=round(judged.requests or 0), cost=1.0)


def _greedy_drafting(model: ModelReport, temperatures: Mapping[str, Sums], thresholds: Thresholds) -> Iterator[Finding]:
    """The draft model picks its likeliest token although hot requests sample: they accept clearly less than at T 0."""
    speculation = model.judgement.evidence.speculation
    if speculation is None or not _drafts_by_argmax(speculation):
        return
    cold = temperatures.get(_GREEDY, Sums())
    hot = Sums()
    for label, sums in temperatures.items():
        hot = hot if label in {_GREEDY, "other"} else hot.plus(sums)
    if min(cold.requests, hot.requests) < max(thresholds.min_requests, 2) or _filtered_share(model) > _MOST_FILTERED:
        return
    below, error = cold.rate - hot.rate, hypot(cold.variance**0.5, hot.variance**0.5)
    if below <= _CLEARLY or below - _CONFIDENCE * error <= 0:
        return
    lower = [name for name, sums in temperatures.items() if name != _GREEDY and sums.rate < cold.rate - _CLEARLY]
    share = hot.drafted / (hot.drafted + cold.drafted)
    yield Finding(
        code=FindingCode.GREEDY_DRAFTING,
        where=tuple(sorted(lower)),
        value=hot.rate,
        other=cold.rate,
        error=error,
        requests=hot.requests,
        cost=share * _time_lost(model, hot.rate, cold.rate),
    )


def _drafts_by_argmax(speculation: Speculation) -> bool:
    """Whether the draft's likeliest token is always drafted although vLLM could sample it (0.22 and later)."""
    return (
        speculation.draft_sample_method == "greedy"
        and honours_draft_sampling(speculation.method)
        and speculation.rejection_sample_method in {None, "standard"}
        and not (speculation.local_argmax or speculation.heterogeneous_vocab or speculation.adaptive_verification)
    )


def _filtered_share(model: ModelReport) -> float:
    """The share of the draft tokens above temperature 0 that top-k, top-p or min-p filtered."""
    drafted = {group.group: group.window.draft_tokens for group in model.groups if group.by == "sampling"}
    hot = sum(tokens for name, tokens in drafted.items() if name != "greedy")
    return drafted.get("filtered", 0.0) / hot if hot else 1.0


def _one_engine(model: ModelReport) -> Iterator[Finding]:
    """One engine alone accepts less, at the same temperatures and prompt lengths."""
    lower = [engine for engine in model.engines if engine.difference is not None and engine.difference.is_clearly_lower]
    if len(lower) == 1:
        yield _lower(model, FindingCode.ONE_ENGINE, lower[0].key.engine, lower[0])


def _groups(model: ModelReport) -> Iterator[Finding]:
    """Groups that accept less at the same temperatures; short prompts are no cause."""
    for group in model.groups:
        is_cause = group.by != "prompt_tokens" or group.group != "0-512"
        if group.accepts_less and is_cause and group.group not in {"free", "plain", "none"}:
            yield _lower(model, _BY_TABLE[group.by], group.group, group)


def _lower(model: ModelReport, code: FindingCode, name: str, part: GroupReport | EngineReport) -> Finding:
    difference = part.difference
    assert difference is not None  # noqa: S101 - the caller has seen it
    drafted = sum(engine.acceptance.draft_tokens for engine in model.engines if engine.acceptance is not None)
    share = min(difference.drafted / drafted, 1.0) if drafted else 0.0
    return Finding(
        code=code,
        where=(name,),
        value=difference.rate,
        other=difference.others,
        error=difference.error,
        requests=difference.requests,
        cost=share * _time_lost(model, difference.rate, difference.others),
    )


def _time_lost(model: ModelReport, rate: float, better: float) -> float:
    """The share of the time per token that acceptance rate ``rate`` costs, compared with ``better``."""
    window = model.judgement.evidence.window
    drafted = window.draft_tokens / window.drafts if window.drafts else 1.0
    return 1 - (1 + drafted * rate) / (1 + drafted * better)


def _load(model: ModelReport) -> Iterator[Finding]:
    """Speculation loses at the load of the window, and pays with fewer requests running."""
    speed, judgement = model.speed, model.judgement
    if (
        speed is None
        or speed.speedup is None
        or speed.steps is None
        or judgement.by_speedup is not Verdict.NET_NEGATIVE
    ):
        return
    ratio, error = speed.speedup.ratio, speed.speedup.error
    for load in model.loads:  # from low to high
        if load.highest is not None and load.highest < speed.steps.running and load.steps >= _ENOUGH_STEPS:
            pays = load.plain_seconds / load.actual_seconds if load.plain_seconds and load.actual_seconds else 0.0
            if pays - _CONFIDENCE * error * pays / ratio > 1:
                yield Finding(
                    code=FindingCode.LOAD,
                    where=(load.running, f"{speed.steps.running:.0f}"),
                    value=ratio,
                    other=pays,
                    error=error,
                    cost=1 - ratio,
                    schedule=model.advice.schedule if model.advice is not None else (),
                )
                return


def _length(model: ModelReport) -> Iterator[Finding]:
    """Another number of draft tokens would be better: by time if that is known, else by acceptance."""
    advice = model.advice or Advice()
    tokens = advice.tokens
    if tokens is None:
        return
    more = tokens.direction is Direction.MORE
    cost = 1 - tokens.best_seconds / tokens.now_seconds if tokens.best_seconds and tokens.now_seconds else 0.0
    yield Finding(
        code=FindingCode.TOO_FEW_TOKENS if more else FindingCode.TOO_MANY_TOKENS,
        value=tokens.acceptance if tokens.best_seconds is None else tokens.now_seconds,
        other=tokens.next_rate if tokens.best_seconds is None else tokens.best_seconds,
        cost=cost,
        tokens=tokens,
        schedule=advice.schedule,
    )
