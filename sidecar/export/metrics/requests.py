"""Metrics of requests, as vLLM's scheduler counted them, by temperature and by group, and the verdicts."""

from typing import Final

from sidecar.analysis.advice import FindingCode
from sidecar.analysis.report import ModelReport
from sidecar.analysis.verdict import Basis, Judgement, Verdict
from sidecar.export.declaration import GROUP, MODEL, SINGLE_ENGINE, TEMPERATURE, Values


def _verdicts(judgement: Judgement) -> Values:
    return {verdict: verdict is judgement.verdict for verdict in Verdict} if judgement.is_known else None


def _bases(judgement: Judgement) -> Values:
    return {basis: basis is judgement.basis for basis in Basis} if judgement.is_known else None


def _is_low(judgement: Judgement) -> Values:
    return judgement.is_low if judgement.is_known else None


def _findings(model: ModelReport) -> Values:
    codes = {finding.code for finding in model.findings}
    return {code: code in codes for code in FindingCode} if model.speed is not None else None  # a stale poll has none


METRICS: Final = (
    # By temperature, live: they grow while requests run, and add up to vLLM's own counters.
    TEMPERATURE.counter(
        "requests",
        "Finished requests; aborted are those whose client left or whose text met a stop string: "
        "the engine cannot tell.",
        lambda bucket: bucket.tally.by_outcome,
        "outcome",
    ),
    TEMPERATURE.counter("drafts", "Drafts (verification steps).", lambda bucket: bucket.tally.drafts),
    TEMPERATURE.counter("draft_tokens", "Draft tokens.", lambda bucket: bucket.tally.draft_tokens),
    TEMPERATURE.counter("accepted_tokens", "Accepted draft tokens.", lambda bucket: bucket.tally.accepted_tokens),
    TEMPERATURE.by_position(
        "draft_tokens_per_position",
        "Draft tokens by draft position, starting at 0.",
        lambda bucket: bucket.tally.drafted_at,
    ),
    TEMPERATURE.by_position(
        "accepted_tokens_per_position",
        "Accepted draft tokens by draft position, starting at 0.",
        lambda bucket: bucket.tally.accepted_at,
    ),
    # By temperature, one observation per finished request.
    TEMPERATURE.histogram(
        "request_acceptance_ratio",
        "Accepted / draft tokens; one observation per request.",
        lambda bucket: bucket.acceptances,
    ),
    TEMPERATURE.histogram(
        "request_acceptance_length",
        "Tokens per verification step, bonus token included; one observation per request.",
        lambda bucket: bucket.lengths,
    ),
    TEMPERATURE.histogram(
        "request_time_to_first_token_seconds",
        "Time from a request's arrival at vLLM to its first token, as the engine saw them.",
        lambda bucket: bucket.ttft,
    ),
    TEMPERATURE.histogram(
        "request_time_per_output_token_seconds", "Time per output token after the first.", lambda bucket: bucket.tpot
    ),
    TEMPERATURE.histogram(
        "request_duration_seconds",
        "Time from a request's arrival at vLLM to its last token, as the engine saw them.",
        lambda bucket: bucket.durations,
    ),
    MODEL.gauge(
        "request_acceptance_p10_ratio",
        "10th percentile of single requests' acceptance over latency_window, or over the last hour's latest "
        "min_requests if the window has fewer; absent if the hour has fewer.",
        lambda model: model.acceptance_p10,
    ),
    # By group: prompt_tokens, output and, if plugin.adapters is on, adapter.
    GROUP.counter("group_requests", "Finished requests of a group.", lambda group: group.tally.requests),
    GROUP.counter("group_drafts", "Drafts (verification steps) of a group.", lambda group: group.tally.drafts),
    GROUP.counter("group_draft_tokens", "Draft tokens of a group.", lambda group: group.tally.draft_tokens),
    GROUP.counter(
        "group_accepted_tokens", "Accepted draft tokens of a group.", lambda group: group.tally.accepted_tokens
    ),
    # What is judged: the same numbers as on the page and in pushed alerts.
    TEMPERATURE.gauge(
        "acceptance_ratio",
        "Accepted / draft tokens over the window that is judged, latency_window or an hour; absent below the gates.",
        lambda bucket: bucket.judgement.acceptance,
    ),
    TEMPERATURE.gauge(
        "acceptance_low",
        "1 if specdec_acceptance_ratio is below acceptance_net_negative, else 0. A verdict by that rate keeps it at 1 "
        "until the rate is 0.02 above the threshold.",
        lambda bucket: _is_low(bucket.judgement),
    ),
    TEMPERATURE.gauge(
        "verdict", "1 for the current verdict, 0 for the others.", lambda bucket: _verdicts(bucket.judgement), "verdict"
    ),
    TEMPERATURE.gauge(
        "verdict_basis",
        "1 for the basis of the verdict: a measured speedup, else the acceptance rate.",
        lambda bucket: _bases(bucket.judgement),
        "basis",
    ),
    MODEL.gauge(
        "model_acceptance_ratio",
        "specdec_acceptance_ratio of all of a model's requests, by vLLM's own counters.",
        lambda model: model.judgement.acceptance,
    ),
    MODEL.gauge(
        "model_acceptance_low",
        "specdec_acceptance_low of the model as a whole.",
        lambda model: _is_low(model.judgement),
    ),
    MODEL.gauge(
        "model_collapsed",
        "1 if almost no draft tokens are accepted, at any temperature and from the first position on; else 0.",
        lambda model: model.judgement.has_collapsed if model.judgement.is_known else None,
    ),
    MODEL.gauge(
        "model_verdict", "specdec_verdict of the model as a whole.", lambda model: _verdicts(model.judgement), "verdict"
    ),
    MODEL.gauge(
        "model_verdict_basis",
        "specdec_verdict_basis of the model as a whole.",
        lambda model: _bases(model.judgement),
        "basis",
    ),
    SINGLE_ENGINE.gauge(
        "engine_verdict",
        "specdec_verdict of one engine of a model.",
        lambda engine: _verdicts(engine.judgement),
        "verdict",
    ),
    MODEL.gauge(
        "finding",
        "1 for each finding on why speculation loses or what would make it gain more, 0 for the others; docs/why.md.",
        _findings,
        "finding",
    ),
    # Against plain decoding.
    TEMPERATURE.gauge(
        "speedup_ratio",
        "Plain time per token / actual over latency_window; above 1, speculation is faster. "
        "Absent without a reference.",
        lambda bucket: bucket.speedup.ratio if bucket.speedup else None,
    ),
    TEMPERATURE.counter(
        "time_saved_seconds", "Request-seconds saved against plain decoding.", lambda bucket: bucket.saved_seconds
    ),
    TEMPERATURE.counter(
        "time_lost_seconds", "Request-seconds lost against plain decoding.", lambda bucket: bucket.lost_seconds
    ),
)
