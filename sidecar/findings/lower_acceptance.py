"""What findings share that compare the acceptance rate of some requests with that of others."""

from dataclasses import dataclass

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.strata import Difference
from sidecar.findings.finding import Finding
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import percent, rate_within


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerAcceptance(Finding):
    """The requests of ``group``, or of that engine, accept clearly less than comparable others.

    ``rate`` is their acceptance rate, ``others`` that of the others, 0 to 1; ``error`` is the
    standard error of the difference. ``loses``: they would be faster without speculation;
    ``break_even`` is the acceptance rate that this is judged by, None if nothing tells, and
    ``break_even_error`` its standard error, where it is measured.
    """

    group: str
    rate: float
    others: float
    error: float
    loses: bool
    break_even: float | None
    break_even_error: float | None = None


def lower_acceptance(
    code: str, group: str, difference: Difference, model: ModelReport, thresholds: Thresholds
) -> LowerAcceptance:
    """The finding on a group, or an engine, that has this ``difference`` from the others."""
    break_even = break_even_acceptance(model, thresholds)
    return LowerAcceptance(
        code=code,
        group=group,
        rate=difference.rate,
        others=difference.others,
        error=difference.error,
        loses=is_below(difference.rate, break_even),
        break_even=break_even,
        break_even_error=model.speed.break_even_error if model.speed is not None else None,
        cost=cost_of(difference, model),
    )


def break_even_acceptance(model: ModelReport, thresholds: Thresholds) -> float | None:
    """The acceptance rate below which requests lose, by time if that is known.

    Otherwise it is the rule of thumb, where that applies. Above 1 if no rate breaks even; None if
    nothing tells.
    """
    speed = model.speed
    if speed is not None and speed.speedup is not None:
        return speed.break_even_acceptance

    is_ruled = model.judgement.evidence.is_ruled
    return thresholds.acceptance_net_negative if is_ruled else None


def is_below(rate: float, break_even: float | None) -> bool:
    """Whether requests with this acceptance rate are known to lose."""
    return break_even is not None and rate < break_even


def cost_of(difference: Difference, model: ModelReport) -> float:
    """The share of the decoding time that would be saved if the requests accepted as the others.

    Steps take as long as they do now; tokens per step follow from the acceptance rate.
    """
    window = model.judgement.evidence.window
    tokens_drafted = window.draft_tokens / window.drafts if window.drafts else 1.0
    length_now = 1 + tokens_drafted * difference.rate
    length_as_others = 1 + tokens_drafted * difference.others
    return difference.share * (1 - length_now / length_as_others)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def both_rates(finding: LowerAcceptance) -> str:
    """Both acceptance rates and their difference; the sentence goes on with whose they are."""
    points = 100 * (finding.others - finding.rate)
    interval = 100 * CONFIDENCE * finding.error
    return (
        f"{percent(finding.rate)} of their draft tokens, {points:.0f} ± {interval:.0f} points less"
        f" than the {percent(finding.others)} of those"
    )


def without_advice(finding: LowerAcceptance) -> str:
    """Why there is nothing to change."""
    if finding.break_even is None:
        return (
            "Whether these requests lose is not known: the acceptance rate does not tell with this"
            " method. Measure a baseline with `specdec-sidecar baseline`."
        )
    known = rate_within(finding.break_even, finding.break_even_error)
    if abs(finding.rate - finding.break_even) < CONFIDENCE * (finding.break_even_error or 0.0):
        return f"Whether these requests lose is not certain: speculation breaks even at {known}."
    return (
        f"Nothing to change: these requests still gain, since speculation breaks even at {known}."
    )
