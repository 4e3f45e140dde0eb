"""One server's requests as JSON."""

from typing import Any

from sidecar.analysis.attribution.outcome import AttributionOutcome
from sidecar.analysis.attribution.result import Attribution
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.export.request_notes import attribution_outcomes, request_notes


def request_status(report: RequestReport | None, coverage: float) -> dict[str, Any] | None:
    """Null where there is no request source; ratios 0 to 1, null where they can't be told.

    ``events`` are since the start; ``ended`` and ``attributed`` count requests of the sliding window. Below
    ``coverage`` the split by temperature is incomplete.
    """
    if report is None:
        return None
    found = attribution_outcomes(report)
    return {
        "source": report.source,
        "events": report.events,
        "exact": any(_is_exact(model) for model in report.models),
        "dropped": dict(report.dropped),
        "ended": found.total(),
        "attributed": found[AttributionOutcome.EXACT] + found[AttributionOutcome.INFERRED],
        "notes": list(request_notes(report, coverage)),
        "models": [_model(model) for model in report.models],
    }


def _is_exact(model: ModelRequests) -> bool:
    """Whether vLLM has told its own numbers of any request."""
    return any(
        count for (_, attribution, _outcome), count in model.stats.requests.items() if attribution is Attribution.EXACT
    )


def _model(model: ModelRequests) -> dict[str, Any]:
    return {
        "model_name": model.model_name,
        "coverage": model.coverage,
        "residual": model.residual,
        "ended": dict(model.attribution_outcomes),
        "temperatures": {temperature: _temperature(model, temperature) for temperature in model.recent},
    }


def _temperature(model: ModelRequests, temperature: str) -> dict[str, Any]:
    """One bucket over the sliding window."""
    work = model.recent[temperature]
    return {
        "verdict": model.verdicts[temperature],
        "advice": model.advice.get(temperature),
        "requests": work.requests,
        "drafts": work.drafts,
        "draft_tokens": work.draft_tokens,
        "accepted_tokens": work.accepted_tokens,
        "acceptance": work.acceptance,
        "p10": work.p10,
        "p50": work.p50,
        "p90": work.p90,
        "distribution": list(work.distribution),
        "position_rates": list(work.positions),
    }
