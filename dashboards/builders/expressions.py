"""Expressions that several panels use."""

from dashboards.builders.query import BUCKET, MODEL, POD, alerts, ratio, series, total, worst

# Accepted / drafted tokens, from the requests that were seen, and from vLLM's own counters.
ACCEPTANCE_BY_BUCKET = ratio(BUCKET, "accepted_tokens_total", "draft_tokens_total")
ACCEPTANCE_BY_MODEL = ratio("model_name", "engine_accepted_tokens_total", "engine_draft_tokens_total")
ACCEPTANCE_BY_NAMESPACE = ratio(MODEL, "engine_accepted_tokens_total", "engine_draft_tokens_total")
ACCEPTANCE_BY_POD = ratio(POD, "engine_accepted_tokens_total", "engine_draft_tokens_total")
DRAFTS_BY_POD = total(POD, "engine_drafts_total")


def _verdict(name: str) -> str:
    return series("verdict", f'verdict="{name}"')


def verdict_code(by: str) -> str:
    """The worst verdict of each group: 3 loses, 2 breaks even, 1 pays, 0 too little data."""
    codes = ("3 * " + _verdict("net_negative"), "2 * " + _verdict("break_even"), _verdict("net_positive"))
    # Each of a bucket's verdicts is a series of its own, 0 where it doesn't hold.
    return worst(by, " or ".join(codes))


# The buckets that lose, as 1; else one series ``nowhere``, as 0; nothing at all where nothing is judged.
LOSING_BUCKETS = (
    f"({worst(BUCKET, _verdict('net_negative'))} == 1) "
    f'or on () label_replace(max({_verdict("net_negative")}) == 0, "temperature", "nowhere", "", "")'
)


def _model_verdict(name: str) -> str:
    named = series("model_verdict", f'verdict="{name}"')
    return f"sum by ({POD}) ({named})"


# 2 pays, 1 breaks even, 0 loses: the worst of the pods that are judged.
PAYS = (
    f"min((2 * {_model_verdict('net_positive')} + {_model_verdict('break_even')})"
    f" unless {_model_verdict('insufficient_data')} == 1)"
)
LOSING_PODS = f"count({_model_verdict('net_negative')} == 1) or on () vector(0)"

FIRING = alerts('alertstate="firing"')

# When each firing alert's condition came to hold, in milliseconds since 1970.
FIRING_SINCE = f"({alerts(name='ALERTS_FOR_STATE')} and ignoring (alertstate) {FIRING}) * 1000"
