"""``greedy_drafting``: the draft model picks its likeliest token although hot requests sample."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Final

from sidecar.analysis.findings.rates import LowerAcceptance, cost_of
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.split.strata import Difference, Sums, total
from sidecar.analysis.split.tallies import GREEDY
from sidecar.engine.methods import honours_draft_sampling
from sidecar.requests.messages import OTHER, Speculation

# share of the hot draft tokens up to which the draft's sampling can be the cause
_MOST_FILTERED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyDrafting(LowerAcceptance):
    """Requests above temperature 0 accept clearly less than those at 0.

    ``temperatures`` are the labels of those with enough requests.
    """

    code: ClassVar[str] = "greedy_drafting"
    temperatures: tuple[str, ...]


def greedy_drafting(situation: Situation) -> GreedyDrafting | None:
    """The finding, unless filters explain the difference or vLLM could not draft otherwise."""
    model = situation.model
    speculation = model.judgement.evidence.speculation
    if speculation is None or not _drafts_by_argmax(speculation):
        return None

    known = [part.temperature for part in model.temperatures if part.temperature != OTHER]
    rates = {label: _at(label, situation) for label in known}
    cold = rates.pop(GREEDY, Sums())
    hot = total(rates.values())

    min_requests = situation.thresholds.min_requests
    are_few = min(cold.requests, hot.requests) < max(min_requests, 2)
    if are_few or _filtered(rates, situation) > _MOST_FILTERED * hot.drafted:
        return None

    error = sqrt(hot.variance + cold.variance)
    difference = Difference(hot.rate, cold.rate, error, hot.drafted)
    if not difference.is_clearly_lower:
        return None

    return GreedyDrafting(
        temperatures=tuple(label for label, sums in rates.items() if sums.requests >= min_requests),
        rate=difference.rate,
        others=difference.others,
        error=difference.error,
        cost=cost_of(difference, model),
    )


def _drafts_by_argmax(speculation: Speculation) -> bool:
    """Whether the draft's likeliest token is always drafted although vLLM could sample it.

    vLLM 0.22 and later can.
    """
    return (
        speculation.draft_sample_method == "greedy"
        and honours_draft_sampling(speculation.method)
        and speculation.rejection_sample_method in {None, "standard"}
        and not (
            speculation.local_argmax
            or speculation.heterogeneous_vocab
            or speculation.adaptive_verification
        )
    )


def _at(label: str, situation: Situation) -> Sums:
    """The finished requests at a temperature."""
    cells = situation.sampling.items()
    return total(sums for (temperature, _), sums in cells if temperature == label)


def _filtered(labels: dict[str, Sums], situation: Situation) -> int:
    """The draft tokens of requests at these temperatures that use top-k, top-p or min-p."""
    cells = situation.sampling.items()
    return total(
        sums for (label, way), sums in cells if label in labels and way == "filtered"
    ).drafted
