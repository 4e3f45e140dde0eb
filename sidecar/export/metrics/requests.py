"""Metrics of requests by vLLM's scheduler, by temperature and by group, and the verdicts."""

from collections.abc import Callable
from typing import Final, Protocol

from sidecar.analysis.judgement import Basis, Judgement, Verdict
from sidecar.analysis.report import ModelReport
from sidecar.export.declaration import GROUP, MODEL, SINGLE_ENGINE, TEMPERATURE, ByLabel, Value
from sidecar.findings.catalog import BY_CODE, OF_REQUESTS
from sidecar.findings.finding import advised


class _Judged(Protocol):
    @property
    def judgement(self) -> Judgement: ...


def _if_judged(read: Callable[[Judgement], Value]) -> Callable[[_Judged], Value]:
    """Absent below the gates, as after every start of the sidecar: a 0 there would end alerts."""
    return lambda node: read(node.judgement) if node.judgement.judged is not None else None


def _verdicts(node: _Judged) -> ByLabel | None:
    """Until it is certain only that the data are insufficient; a 0 there would end alerts."""
    judgement = node.judgement
    if not judgement.is_known:
        return None
    if judgement.judged is None or judgement.undecided is not None:
        return {judgement.verdict: True}
    return {verdict: verdict is judgement.verdict for verdict in Verdict}


_BASES: Final = _if_judged(lambda judgement: {basis: basis is judgement.basis for basis in Basis})
_IS_LOW: Final = _if_judged(lambda judgement: judgement.is_low)
_HAS_COLLAPSED: Final = _if_judged(lambda judgement: judgement.has_collapsed)


def _findings(model: ModelReport) -> ByLabel | None:
    """Those that were found, and the others where they are known."""
    if model.speed is None:  # a stale poll has none
        return None
    found = {finding.code for finding in advised(model.findings)}
    if model.judgement.judged is None:
        return dict.fromkeys(found, True)
    unknown = OF_REQUESTS if model.endings is None else frozenset[str]()
    return {code: code in found for code in BY_CODE if code in found or code not in unknown}


def _ranks(model: ModelReport) -> ByLabel:
    codes = dict.fromkeys(finding.code for finding in advised(model.findings))
    return {code: rank for rank, code in enumerate(codes, start=1)}


METRICS: Final = (
    # By temperature, live: they grow while requests run, and add up to vLLM's own counters.
    TEMPERATURE.counter(
        "requests",
        (
            "Finished requests; aborted are those whose client left or whose text met a stop "
            "string: the engine cannot tell."
        ),
        ["outcome"],
        value=lambda part: part.tally.by_outcome,
    ),
    TEMPERATURE.counter(
        "drafts",
        "Drafts (verification steps).",
        value=lambda part: part.tally.drafts,
    ),
    TEMPERATURE.counter(
        "draft_tokens",
        "Draft tokens.",
        value=lambda part: part.tally.draft_tokens,
    ),
    TEMPERATURE.counter(
        "accepted_tokens",
        "Accepted draft tokens.",
        value=lambda part: part.tally.accepted_tokens,
    ),
    TEMPERATURE.by_position(
        "draft_tokens_per_position",
        "Draft tokens by draft position, starting at 0.",
        value=lambda part: part.tally.drafted_at,
    ),
    TEMPERATURE.by_position(
        "accepted_tokens_per_position",
        "Accepted draft tokens by draft position, starting at 0.",
        value=lambda part: part.tally.accepted_at,
    ),
    TEMPERATURE.counter(
        "request_endings",
        (
            "Finished requests by how their output ends: loop repeats itself until it is cut off,"
            " empty stops with at most one token, normal is the rest. Absent where the plug-in"
            " cannot tell."
        ),
        ["ending"],
        value=lambda part: part.endings,
    ),
    # By temperature, one observation per finished request.
    TEMPERATURE.histogram(
        "request_acceptance_ratio",
        "Accepted / draft tokens; one observation per request.",
        value=lambda part: part.acceptances,
    ),
    TEMPERATURE.histogram(
        "request_acceptance_length",
        "Tokens per verification step, bonus token included; one observation per request.",
        value=lambda part: part.lengths,
    ),
    TEMPERATURE.histogram(
        "request_time_to_first_token_seconds",
        "Time from a request's arrival at vLLM to its first token, as the engine saw them.",
        value=lambda part: part.ttft,
    ),
    TEMPERATURE.histogram(
        "request_time_per_output_token_seconds",
        "Time per output token after the first.",
        value=lambda part: part.tpot,
    ),
    TEMPERATURE.histogram(
        "request_duration_seconds",
        "Time from a request's arrival at vLLM to its last token, as the engine saw them.",
        value=lambda part: part.durations,
    ),
    MODEL.gauge(
        "request_acceptance_p10_ratio",
        (
            "10th percentile of the acceptance of single requests with at least 100 draft tokens,"
            " over latency_window or, if the window has fewer than min_requests, over the last"
            " hour's latest; absent if the hour has fewer."
        ),
        value=lambda model: model.acceptance_p10,
    ),
    # By group: prompt_tokens, output, ending of finished requests, sampling and, if plugin.adapters
    # is on, adapter.
    GROUP.counter(
        "group_requests",
        "Finished requests of a group.",
        value=lambda group: group.tally.requests,
    ),
    GROUP.counter(
        "group_drafts",
        "Drafts (verification steps) of a group.",
        value=lambda group: group.tally.drafts,
    ),
    GROUP.counter(
        "group_draft_tokens",
        "Draft tokens of a group.",
        value=lambda group: group.tally.draft_tokens,
    ),
    GROUP.counter(
        "group_accepted_tokens",
        "Accepted draft tokens of a group.",
        value=lambda group: group.tally.accepted_tokens,
    ),
    # What is judged: the same numbers as on the page and in pushed alerts.
    TEMPERATURE.gauge(
        "acceptance_ratio",
        (
            "Accepted / draft tokens over the window that is judged, latency_window or an hour; "
            "absent below the gates."
        ),
        value=lambda part: part.judgement.acceptance,
    ),
    TEMPERATURE.gauge(
        "acceptance_low",
        (
            "1 once it is certain that the acceptance rate is below acceptance_net_negative, 0 once"
            " it is certain that it is not. Absent before, and where specdec_acceptance_ratio is."
        ),
        value=_IS_LOW,
    ),
    TEMPERATURE.gauge(
        "verdict",
        (
            "1 for the current verdict, 0 for the others. Where the acceptance rate is absent or"
            " not certain yet, there is only insufficient_data."
        ),
        ["verdict"],
        value=_verdicts,
    ),
    TEMPERATURE.gauge(
        "verdict_basis",
        (
            "1 for the basis of the verdict: a measured speedup, else the acceptance rate. Absent"
            " where specdec_acceptance_ratio is."
        ),
        ["basis"],
        value=_BASES,
    ),
    MODEL.gauge(
        "model_acceptance_ratio",
        "specdec_acceptance_ratio of all of a model's requests, by vLLM's own counters.",
        value=lambda model: model.judgement.acceptance,
    ),
    MODEL.gauge(
        "model_acceptance_low",
        "specdec_acceptance_low of the model as a whole.",
        value=_IS_LOW,
    ),
    MODEL.gauge(
        "model_collapsed",
        (
            "1 if almost no draft tokens are accepted, at any temperature and from the first "
            "position on; else 0. Absent where specdec_model_acceptance_ratio is."
        ),
        value=_HAS_COLLAPSED,
    ),
    MODEL.gauge(
        "model_verdict",
        "specdec_verdict of the model as a whole.",
        ["verdict"],
        value=_verdicts,
    ),
    MODEL.gauge(
        "model_verdict_basis",
        "specdec_verdict_basis of the model as a whole.",
        ["basis"],
        value=_BASES,
    ),
    SINGLE_ENGINE.gauge(
        "engine_verdict",
        "specdec_verdict of one engine of a model.",
        ["verdict"],
        value=_verdicts,
    ),
    MODEL.gauge(
        "finding",
        (
            "1 for each finding on why speculation loses or what would make it gain more, 0 for"
            " the others and for facts without a remedy; docs/why.md. The others are absent where"
            " specdec_model_acceptance_ratio is, and those on requests where too few have finished."
        ),
        ["finding"],
        value=_findings,
    ),
    MODEL.gauge(
        "finding_rank",
        (
            "Place of a finding among those of its model: 1 is what to change first, which is the"
            " costliest cause. Absent where specdec_finding is 0."
        ),
        ["finding"],
        value=_ranks,
    ),
    # Against plain decoding.
    TEMPERATURE.gauge(
        "speedup_ratio",
        (
            "Plain time per token / actual over latency_window or, as long as that is uncertain, up"
            " to an hour; above 1, speculation is faster. Absent without a reference."
        ),
        value=lambda part: part.speedup.ratio if part.speedup is not None else None,
    ),
    TEMPERATURE.counter(
        "time_saved_seconds",
        "Request-seconds saved against plain decoding.",
        value=lambda part: part.saved_seconds,
    ),
    TEMPERATURE.counter(
        "time_lost_seconds",
        "Request-seconds lost against plain decoding.",
        value=lambda part: part.lost_seconds,
    ),
)
