"""Metrics of requests by vLLM's scheduler, by temperature and by group, and the verdicts."""

from collections.abc import Callable
from typing import Final, Protocol

from sidecar.analysis.advice import FindingCode
from sidecar.analysis.report import ModelReport
from sidecar.analysis.verdict import Basis, Judgement, Verdict
from sidecar.export.declaration import GROUP, MODEL, SINGLE_ENGINE, TEMPERATURE, Values


class _Judged(Protocol):
    @property
    def judgement(self) -> Judgement: ...


def _if_known(read: Callable[[Judgement], Values]) -> Callable[[_Judged], Values]:
    return lambda node: read(node.judgement) if node.judgement.is_known else None


_VERDICTS: Final = _if_known(
    lambda judgement: {verdict: verdict is judgement.verdict for verdict in Verdict}
)
_BASES: Final = _if_known(lambda judgement: {basis: basis is judgement.basis for basis in Basis})
_IS_LOW: Final = _if_known(lambda judgement: judgement.is_low)
_HAS_COLLAPSED: Final = _if_known(lambda judgement: judgement.has_collapsed)


def _findings(model: ModelReport) -> Values:
    if model.speed is None:  # a stale poll has none
        return None
    codes = {finding.code for finding in model.findings}
    return {code: code in codes for code in FindingCode}


METRICS: Final = {
    # By temperature, live: they grow while requests run, and add up to vLLM's own counters.
    TEMPERATURE.counter("requests", "tally.by_outcome", "outcome"): (
        "Finished requests; aborted are those whose client left or whose text met a stop string: "
        "the engine cannot tell."
    ),
    TEMPERATURE.counter("drafts", "tally.drafts"): "Drafts (verification steps).",
    TEMPERATURE.counter("draft_tokens", "tally.draft_tokens"): "Draft tokens.",
    TEMPERATURE.counter("accepted_tokens", "tally.accepted_tokens"): "Accepted draft tokens.",
    TEMPERATURE.by_position(
        "draft_tokens_per_position", "tally.drafted_at"
    ): "Draft tokens by draft position, starting at 0.",
    TEMPERATURE.by_position(
        "accepted_tokens_per_position", "tally.accepted_at"
    ): "Accepted draft tokens by draft position, starting at 0.",
    # By temperature, one observation per finished request.
    TEMPERATURE.histogram(
        "request_acceptance_ratio", "acceptances"
    ): "Accepted / draft tokens; one observation per request.",
    TEMPERATURE.histogram(
        "request_acceptance_length", "lengths"
    ): "Tokens per verification step, bonus token included; one observation per request.",
    TEMPERATURE.histogram(
        "request_time_to_first_token_seconds", "ttft"
    ): "Time from a request's arrival at vLLM to its first token, as the engine saw them.",
    TEMPERATURE.histogram(
        "request_time_per_output_token_seconds", "tpot"
    ): "Time per output token after the first.",
    TEMPERATURE.histogram(
        "request_duration_seconds", "durations"
    ): "Time from a request's arrival at vLLM to its last token, as the engine saw them.",
    MODEL.gauge("request_acceptance_p10_ratio", "acceptance_p10"): (
        "10th percentile of single requests' acceptance over latency_window, or over the last"
        " hour's latest min_requests if the window has fewer; absent if the hour has fewer."
    ),
    # By group: prompt_tokens, output and, if plugin.adapters is on, adapter.
    GROUP.counter("group_requests", "tally.requests"): "Finished requests of a group.",
    GROUP.counter("group_drafts", "tally.drafts"): "Drafts (verification steps) of a group.",
    GROUP.counter("group_draft_tokens", "tally.draft_tokens"): "Draft tokens of a group.",
    GROUP.counter(
        "group_accepted_tokens", "tally.accepted_tokens"
    ): "Accepted draft tokens of a group.",
    # What is judged: the same numbers as on the page and in pushed alerts.
    TEMPERATURE.gauge("acceptance_ratio", "judgement.acceptance"): (
        "Accepted / draft tokens over the window that is judged, latency_window or an hour; absent"
        " below the gates."
    ),
    TEMPERATURE.gauge("acceptance_low", _IS_LOW): (
        "1 if specdec_acceptance_ratio is below acceptance_net_negative, else 0. A verdict by that"
        " rate keeps it at 1 until the rate is 0.02 above the threshold."
    ),
    TEMPERATURE.gauge(
        "verdict", _VERDICTS, "verdict"
    ): "1 for the current verdict, 0 for the others.",
    TEMPERATURE.gauge(
        "verdict_basis", _BASES, "basis"
    ): "1 for the basis of the verdict: a measured speedup, else the acceptance rate.",
    MODEL.gauge(
        "model_acceptance_ratio", "judgement.acceptance"
    ): "specdec_acceptance_ratio of all of a model's requests, by vLLM's own counters.",
    MODEL.gauge("model_acceptance_low", _IS_LOW): "specdec_acceptance_low of the model as a whole.",
    MODEL.gauge("model_collapsed", _HAS_COLLAPSED): (
        "1 if almost no draft tokens are accepted, at any temperature and from the first position"
        " on; else 0."
    ),
    MODEL.gauge("model_verdict", _VERDICTS, "verdict"): "specdec_verdict of the model as a whole.",
    MODEL.gauge(
        "model_verdict_basis", _BASES, "basis"
    ): "specdec_verdict_basis of the model as a whole.",
    SINGLE_ENGINE.gauge(
        "engine_verdict", _VERDICTS, "verdict"
    ): "specdec_verdict of one engine of a model.",
    MODEL.gauge("finding", _findings, "finding"): (
        "1 for each finding on why speculation loses or what would make it gain more, 0 for the"
        " others; docs/why.md."
    ),
    # Against plain decoding.
    TEMPERATURE.gauge("speedup_ratio", "speedup.ratio"): (
        "Plain time per token / actual over latency_window; above 1, speculation is faster. Absent"
        " without a reference."
    ),
    TEMPERATURE.counter(
        "time_saved_seconds", "saved_seconds"
    ): "Request-seconds saved against plain decoding.",
    TEMPERATURE.counter(
        "time_lost_seconds", "lost_seconds"
    ): "Request-seconds lost against plain decoding.",
}
