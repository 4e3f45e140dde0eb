"""``structured_output``: it accepts less, or its grammar forbids drafts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.group import AT_LAST, RUNBOOK, accepting_less
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.lower_acceptance import LowerAcceptance, both_rates, without_advice
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.findings.paste import verification
from sidecar.requests.keys import Table
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import percent

_CODE: Final = "structured_output"
_ENOUGH_TOKENS: Final = 1000  # decoded without a draft
_STRUCTURED: Final = "structured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForbiddenDrafts(Finding):
    """Structured output whose grammar forbids every draft token, so that vLLM counts none.

    ``acceptance`` is the acceptance rate of all requests.
    """

    code: str = field(default=_CODE, init=False)
    acceptance: float | None


def structured_output(
    model: ModelReport, thresholds: Thresholds
) -> Iterator[LowerAcceptance | ForbiddenDrafts]:
    """The finding on structured output that accepts less, or that gets no draft at all."""
    structured = [
        group for group in model.groups if group.by == Table.OUTPUT and group.group == _STRUCTURED
    ]
    yield from accepting_less(_CODE, structured, model, thresholds, _loses)
    yield from forbidden_drafts(model, thresholds)


def _loses(finding: LowerAcceptance, _worthwhile: float) -> bool:
    """Whether to change anything: no draft knows a grammar, so only what loses."""
    return finding.loses


def forbidden_drafts(model: ModelReport, thresholds: Thresholds) -> Iterator[ForbiddenDrafts]:
    """The finding, if structured output decoded much without a draft."""
    groups = model.groups
    is_undrafted = any(part.without_drafts for part in groups if part.group == _STRUCTURED)
    tokens = model.structured_undrafted
    if tokens < _ENOUGH_TOKENS or not is_undrafted:
        return

    window = model.judgement.evidence.window
    length = window.length or 1.0
    share = tokens / (tokens + window.drafts * length)
    cost = share * (1 - 1 / length)
    is_advice = cost >= thresholds.worthwhile
    yield ForbiddenDrafts(acceptance=window.rate, cost=cost, is_advice=is_advice)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_REPEAT: Final = f"Try n-gram or suffix decoding, which repeats keys and punctuation. {AT_LAST}."
_GRAMMAR: Final = (
    "The drafter does not know the grammar, and vLLM drops the draft tokens that the grammar"
    " forbids."
)
_STRUCTURED_BODY: Final = '{"response_format": {"type": "json_object"}}'


def _structured_output(
    finding: LowerAcceptance | ForbiddenDrafts, model: ModelReport
) -> Explanation:
    if isinstance(finding, ForbiddenDrafts):
        return _forbidden(finding, model)
    return _less(finding, model)


def _less(finding: LowerAcceptance, model: ModelReport) -> Explanation:
    what = (
        f"Requests with structured output accept {both_rates(finding)} without it that"
        " are otherwise alike."
    )
    if not finding.is_advice:
        why = f"{_GRAMMAR} {without_advice(finding)}"
        return Explanation.fact(finding.code, what, why)

    return _structured(what, model)


def _forbidden(finding: ForbiddenDrafts, model: ModelReport) -> Explanation:
    accepted = percent(finding.acceptance or 0.0)
    what = (
        "Requests with structured output get no draft tokens: the grammar forbids all of them. Over"
        f" all requests, vLLM accepts {accepted} of the draft tokens."
    )
    if not finding.is_advice:
        why = "Nothing to change: these requests are too small a part."
        return Explanation.fact(finding.code, what, why)

    return _structured(what, model)


def _structured(what: str, model: ModelReport) -> Explanation:
    return Explanation(
        code=_CODE,
        what=what,
        remedy=_REPEAT,
        expect=_GRAMMAR,
        verify=verification(model, body=_STRUCTURED_BODY),
    )


STRUCTURED_OUTPUT: Final = FindingKind(
    code=_CODE,
    gate=structured_output,
    place=Place.PART,
    unless=(ONE_ENGINE,),
    of_requests=True,
    explain=_structured_output,
    why="structured output loses",
    remedy="try n-gram or suffix decoding",
    runbook=RUNBOOK,
)
