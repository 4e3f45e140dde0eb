"""One server's requests as samples."""

from sidecar.analysis.attribution.result import Attribution
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.verdict import ModelJudgement, Verdict
from sidecar.export import metrics
from sidecar.export.families import Families


def add_requests(families: Families, report: RequestReport, *, fresh: bool, max_positions: int) -> None:
    """Adds what is known of requests; what holds only for the moment is left out where the state is not ``fresh``."""
    families.add(metrics.REQUEST_EVENTS, report.events, report.source)
    for reason, count in sorted(report.dropped.items()):
        families.add(metrics.REQUEST_EVENTS_DROPPED, count, report.source, reason)
    for model in report.models:
        _add_work(families, model, max_positions)
        _add_latencies(families, model)
        if fresh:
            families.add(metrics.COVERAGE, model.coverage, model.model_name)
            families.add(metrics.RESIDUAL, model.residual, model.model_name)


def _add_work(families: Families, model: ModelRequests, max_positions: int) -> None:
    for (temperature, attribution, outcome), count in model.stats.requests.items():
        families.add(metrics.REQUESTS, count, model.model_name, temperature, attribution, outcome)
    for (temperature, attribution), work in model.stats.work.items():
        labels = (model.model_name, temperature, attribution)
        families.add(metrics.DRAFTS, work.drafts, *labels)
        families.add(metrics.DRAFT_TOKENS, work.draft_tokens, *labels)
        families.add(metrics.ACCEPTED_TOKENS, work.accepted_tokens, *labels)
        families.add_histogram(metrics.REQUEST_ACCEPTANCE, work.acceptance, *labels)
        families.add_histogram(metrics.REQUEST_ACCEPTANCE_LENGTH, work.length, *labels)
        if attribution is Attribution.EXACT:
            families.add_positions(metrics.ACCEPTED_PER_POSITION, work.accepted_per_position, max_positions, *labels)


def _add_latencies(families: Families, model: ModelRequests) -> None:
    for temperature, latencies in model.stats.latencies.items():
        labels = (model.model_name, temperature)
        families.add_histogram(metrics.REQUEST_TTFT, latencies.ttft, *labels)
        families.add_histogram(metrics.REQUEST_TPOT, latencies.tpot, *labels)
        families.add_histogram(metrics.REQUEST_DURATION, latencies.duration, *labels)


def add_judgement(families: Families, model: ModelJudgement) -> None:
    """Adds the verdict on each temperature."""
    for temperature, judgement in model.temperatures.items():
        for one in Verdict:
            families.add(metrics.VERDICT, one is judgement.verdict, model.model_name, temperature, one)
