"""``greedy_drafting``: the draft model picks its likeliest token although hot requests sample.

It follows from the engine's configuration: requests at temperature 0 are not needed to see it, but
bound what there is to gain. docs/why.md has the measurements.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.evidence import CONFIDENCE, Acceptance, sum_windows
from sidecar.analysis.report import ModelReport, TemperatureReport
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.split.tallies import GREEDY
from sidecar.engine.methods import can_sample_drafts
from sidecar.findings.explanation import Explanation, speculating_engine, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.long_requests import LONG_REQUESTS
from sidecar.findings.lower_acceptance import break_even_acceptance, is_below
from sidecar.findings.paste import changed_config, verification
from sidecar.requests.keys import OTHER
from sidecar.requests.messages import Configuration, Speculation
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import memory_size, percent

_CODE: Final = "greedy_drafting"
# share of the hot draft tokens from which on filters shape what hot requests accept
_MOSTLY_FILTERED: Final = 0.5
# The share of drafted tokens that is accepted after an accepted one, of the lab's draft model with
# drafts that are sampled at T 1: 0.747 of three draft tokens, 0.669 with top-k 20 and top-p 0.8. It
# is close to its target, so others seldom reach this.
_CLOSE_DRAFT: Final = 0.87
_CLOSE_DRAFT_FILTERED: Final = 0.81


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyDrafting(Finding):
    """Requests above temperature 0 accept little of what a draft model picks as likeliest.

    ``temperatures`` are the labels of those with enough requests. ``rate`` and ``position_rates``
    are the acceptance rates of all hot requests, 0 to 1, ``length`` their tokens per verification
    step. ``cold_rate`` is the acceptance rate at T 0 without repetition loops, with ``error`` as
    the standard error of the difference; both None with too few requests there. With drafts that
    are sampled, ``length`` rises to ``length_at_most``: to that at ``cold_rate`` or, if
    ``is_bound_measured`` is False, to that of a draft close to its target. ``is_filtered``: most
    use top-k, top-p or min-p.
    """

    code: str = field(default=_CODE, init=False)
    temperatures: tuple[str, ...]
    rate: float
    position_rates: tuple[float, ...]
    length: float
    length_at_most: float
    is_bound_measured: bool
    is_filtered: bool
    cold_rate: float | None
    error: float | None


def greedy_drafting(model: ModelReport, thresholds: Thresholds) -> Iterator[GreedyDrafting]:
    """The finding, if hot requests accept too little and vLLM could sample their drafts."""
    speculation = model.judgement.evidence.speculation
    if speculation is None or not _drafts_by_argmax(speculation):
        return

    hot_parts = [part for part in model.temperatures if part.temperature not in {GREEDY, OTHER}]
    hot = sum_windows([_seen(part) for part in hot_parts])
    if hot.rate is None or hot.length is None or not _is_enough(hot, thresholds):
        return

    difference = _below_cold([part.temperature for part in hot_parts], model, thresholds)
    is_clearly_lower = difference is not None and difference.is_clearly_lower
    if not is_clearly_lower and not _accepts_little(hot.rate, model, thresholds):
        return

    is_filtered = _filtered_share(hot_parts, model) > _MOSTLY_FILTERED
    cold_length = _cold_length(difference, model) if difference is not None else None
    at_most = cold_length or _length_of_close_draft(hot, is_filtered=is_filtered)
    cost = min(hot.share, 1.0) * (1 - hot.length / max(at_most, hot.length))
    if cost < thresholds.worthwhile:
        return

    yield GreedyDrafting(
        temperatures=tuple(_with_enough_requests(hot_parts, thresholds)),
        rate=hot.rate,
        position_rates=hot.position_rates,
        length=hot.length,
        length_at_most=at_most,
        is_bound_measured=cold_length is not None,
        is_filtered=is_filtered,
        cold_rate=difference.others if difference is not None else None,
        error=difference.error if difference is not None else None,
        cost=cost,
    )


def _drafts_by_argmax(speculation: Speculation) -> bool:
    """Whether the draft's likeliest token is always drafted although vLLM could sample it.

    vLLM 0.22 and later can.
    """
    can_sample = can_sample_drafts(
        speculation.method,
        in_parallel=speculation.parallel_drafting,
        architectures=speculation.draft_architectures or (),
    )
    verifies_exactly = speculation.rejection_sample_method in {None, "standard"}
    is_refused = (
        speculation.local_argmax
        or speculation.heterogeneous_vocab
        or speculation.adaptive_verification
    )
    is_by_argmax = speculation.draft_sample_method == "greedy"

    return is_by_argmax and can_sample and verifies_exactly and not is_refused


def _seen(part: TemperatureReport) -> Acceptance:
    """The window that was judged or, below the gates, the recent one."""
    return part.judgement.judged or part.window


def _is_enough(hot: Acceptance, thresholds: Thresholds) -> bool:
    """Whether the hot requests together pass the gates of a verdict on one temperature."""
    has_requests = (hot.requests or 0) >= thresholds.min_requests
    has_drafts = hot.drafts >= thresholds.min_drafts_per_second * hot.seconds
    return has_requests and has_drafts and hot.share >= thresholds.min_bucket_share


def _accepts_little(rate: float, model: ModelReport, thresholds: Thresholds) -> bool:
    """Whether the rate is below break-even, or below what pays by the rule of thumb."""
    line = thresholds.acceptance_break_even
    return rate < line or is_below(rate, break_even_acceptance(model, thresholds))


def _below_cold(
    hot_labels: Iterable[str], model: ModelReport, thresholds: Thresholds
) -> Difference | None:
    """How far hot requests accept less than those at T 0; None if either are too few."""
    cold = _at(GREEDY, model)
    parts = {label: part for label in hot_labels if (part := _at(label, model))}
    hot = total(parts.values())
    if min(cold.requests, hot.requests) < thresholds.min_requests:
        return None

    variance = _variance(GREEDY, cold, model) + sum(
        (part.drafted / hot.drafted) ** 2 * _variance(label, part, model)
        for label, part in parts.items()
    )
    share = hot.drafted / (hot.drafted + cold.drafted)
    return Difference(hot.rate, cold.rate, sqrt(variance), share)


def _variance(label: str, sums: Sums, model: ModelReport) -> float:
    return model.spreads.get(label, Spread()).variance_of(sums)


def _cold_length(difference: Difference, model: ModelReport) -> float | None:
    """Tokens per verification step at T 0, where drafts by argmax are as good as sampled ones.

    It follows from the finished requests' rate, which has no repetition loops: these are easy to
    draft at T 0, however the draft's tokens are chosen.
    """
    windows = [_seen(part) for part in model.temperatures if part.temperature == GREEDY]
    cold = sum_windows(windows)
    if not cold.drafts:
        return None
    return 1 + difference.others * cold.draft_tokens / cold.drafts


def _length_of_close_draft(hot: Acceptance, *, is_filtered: bool) -> float:
    """Tokens per verification step that a draft close to its target would give."""
    accepted = _CLOSE_DRAFT_FILTERED if is_filtered else _CLOSE_DRAFT
    drafted = round(hot.draft_tokens / hot.drafts)
    return sum(accepted**position for position in range(drafted + 1))


def _at(label: str, model: ModelReport) -> Sums:
    """The finished requests at a temperature."""
    cells = model.sampling.items()
    return total(sums for (temperature, _), sums in cells if temperature == label)


def _filtered_share(hot_parts: Iterable[TemperatureReport], model: ModelReport) -> float:
    """The share of the hot draft tokens of requests that use top-k, top-p or min-p."""
    labels = {part.temperature for part in hot_parts}
    cells = [(way, sums) for (label, way), sums in model.sampling.items() if label in labels]
    drafted = sum(sums.drafted for _, sums in cells)
    filtered = sum(sums.drafted for way, sums in cells if way == "filtered")
    return filtered / drafted if drafted else 0.0


def _with_enough_requests(
    hot_parts: Iterable[TemperatureReport], thresholds: Thresholds
) -> Iterable[str]:
    least = thresholds.min_requests
    return (part.temperature for part in hot_parts if (_seen(part).requests or 0) >= least)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_LOGIT_BYTES: Final = 4  # of a draft that samples: vLLM keeps its logits until verification
_BIASED: Final = (
    ", except for structured output: without async scheduling, vLLM drops the draft tokens that the"
    " grammar forbids before it verifies, which biases the tokens that take their place"
)


def _greedy_drafting(finding: GreedyDrafting, model: ModelReport) -> Explanation:
    at = f" (T {', '.join(finding.temperatures)})" if finding.temperatures else ""
    positions = ", ".join(percent(rate) for rate in finding.position_rates)
    by_position = f"; by position {positions}" if positions else ""
    engine = speculating_engine(model)
    but = _BIASED if engine.configuration.async_scheduling is False else ""
    speculation = speculation_of(model)

    return Explanation(
        code=finding.code,
        what=(
            f"Requests above temperature 0{at} accept {percent(finding.rate)} of their draft tokens"
            f"{_points_below(finding, model)}{by_position}. vLLM drafts the draft model's likeliest"
            " token at every temperature, which a request that samples rejects often."
        ),
        remedy=(
            'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod: the'
            " draft then samples at the request's temperature. The distribution of the output"
            f" stays the same{but}."
        ),
        expect=f"{_range(finding)} {_memory(engine.configuration, speculation)}",
        verify=verification(model, finding.temperatures),
        config=changed_config(speculation, draft_sample_method="probabilistic"),
    )


def _points_below(finding: GreedyDrafting, model: ModelReport) -> str:
    if finding.cold_rate is None or finding.error is None:
        return ""
    has_loops = model.judgement.evidence.loops is not None
    which = " without replies that repeat themselves" if has_loops else ""
    points = 100 * (finding.cold_rate - finding.rate)
    interval = 100 * CONFIDENCE * finding.error
    return (
        f", {points:.0f} ± {interval:.0f} points less than the {percent(finding.cold_rate)} at"
        f" temperature 0{which}"
    )


def _range(finding: GreedyDrafting) -> str:
    """How much the change may gain: from this engine's own rates, else what others measured."""
    now = f"{finding.length:.2f} tokens per step now"
    if finding.is_bound_measured:
        more = percent(finding.length_at_most / finding.length - 1)
        text = (
            f"Expect up to {more} more tokens per step ({now}, {finding.length_at_most:.2f} at"
            " temperature 0 here); with a weak draft up to 3% fewer."
        )
    else:
        text = (
            f"How much it gains here is not known ({now}). Of published pairs, one gained 7 to 11%,"
            " a weak one nothing; the draft of our lab, close to its target, went from 39% to 75%"
            " accepted at T 1."
        )
    if finding.is_filtered:
        text += (
            " Most of these requests use top-k, top-p or min-p, which shape only the target and"
            " shrink the gain: with top-k 20 and top-p 0.8, 44% became 67% at T 1."
        )

    return text


def _memory(configuration: Configuration, speculation: Speculation) -> str:
    """The price of sampling the draft."""
    size = ""
    vocabulary = configuration.sizes.get("vocab_size")
    if configuration.max_num_seqs and vocabulary:
        logits = configuration.max_num_seqs * speculation.num_speculative_tokens * vocabulary
        size = f" up to {memory_size(logits * _LOGIT_BYTES)} of"

    text = f"The draft's logits take{size} GPU memory."
    if configuration.model_runner_v2:
        return text

    return (
        f"{text} On model runner V1, vLLM's memory profiling leaves them out, so"
        " lower --gpu-memory-utilization enough to keep that memory free. There, a request's seed"
        " no longer makes its output reproducible."
    )


GREEDY_DRAFTING: Final = FindingKind(
    code=_CODE,
    gate=greedy_drafting,
    place=Place.DRAFTING,
    unless=(LONG_REQUESTS,),
    of_requests=True,
    explain=_greedy_drafting,
    why="hot requests reject the likeliest token",
    remedy="try draft_sample_method probabilistic",
    runbook="SpecDecodeAcceptanceLowAtTemperature",
)
