"""What to know about the split by temperature: how much of the traffic it covers, and what would improve it."""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sidecar.analysis.attribution.result import AttributionOutcome
from sidecar.analysis.request_state import RequestReport
from sidecar.analysis.verdict import ModelJudgement

_PAST: Final[Mapping[str, str]] = {
    "proxy": "Do clients bypass the proxy and use vLLM's own port?",
    "middleware": "Does every API server of vLLM load the middleware?",
    "traces": "Is every request traced, or a sample?",
}

_TRACES: Final = (
    "Traces carry no acceptance, so it is inferred. To get exact numbers, set `SPECDEC_REQUESTS__SOURCE` to "
    "`middleware` or `proxy`."
)
_ASK: Final[Mapping[str, str]] = {
    "proxy": "Set `SPECDEC_REQUESTS__ASK_USAGE=true`",
    "middleware": "Set `SPECDEC_REQUESTS__ASK_USAGE=true` in vLLM's environment",
}
_UNTOLD: Final = (
    "vLLM reports nothing per request, so acceptance is inferred. From vLLM 0.29 on, "
    "`--per-request-spec-decode-metrics summary` makes it exact; for streams, see `requests.ask_usage`."
)


def attribution_outcomes(report: RequestReport) -> Tally[AttributionOutcome]:
    """The attribution outcomes of all models' requests in the sliding window."""
    found: Tally[AttributionOutcome] = Tally()
    for model in report.models:
        found.update(model.attribution_outcomes)
    return found


def unattributed(ended: int) -> str:
    """A phrase without a full stop, for ``ended`` requests without numbers."""
    return f"{ended:,} request{'' if ended == 1 else 's'} ended, none could be attributed"


def request_notes(report: RequestReport, judgements: Sequence[ModelJudgement]) -> Iterator[str]:
    """Plain sentences; commands and settings are in backticks."""
    found = attribution_outcomes(report)
    incomplete = {model.model_name for model in judgements if not model.is_covered}
    if found[AttributionOutcome.WITHOUT_USAGE]:
        yield _without_usage(found[AttributionOutcome.WITHOUT_USAGE], found.total(), report.source)
    for model in report.models:
        if model.coverage is not None and model.model_name in incomplete:
            past = "" if found[AttributionOutcome.WITHOUT_USAGE] else f" {_PAST.get(report.source, '')}"
            yield (
                f"Only {model.coverage:.0%} of {model.model_name}'s draft tokens are attributed to requests, "
                f"so the split by temperature holds only for that part.{past}"
            )
    if report.source == "traces":
        yield _TRACES
    elif not found[AttributionOutcome.EXACT] and found[AttributionOutcome.INFERRED] + found[AttributionOutcome.UNKNOWN]:
        yield _UNTOLD


def _without_usage(count: int, ended: int, source: str) -> str:
    which = f"All {count:,}" if count == ended > 1 else f"{count:,} of the {ended:,}"
    return (
        f"{which} finished requests in the window were streams without usage, which cannot be attributed. "
        f"{_ASK.get(source, _ASK['proxy'])}: the sidecar then asks vLLM for usage and removes it from the reply, so "
        'clients see no difference. Or let clients ask for it: `"stream_options": {"include_usage": true}`.'
    )
