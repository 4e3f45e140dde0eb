"""Expressions that several panels use."""

from dashboards.builders.inhibitions import FIRES, inhibitions
from dashboards.builders.query import (
    MODEL,
    POD,
    alerts,
    banded,
    lately,
    least,
    missing,
    ratio,
    series,
    threshold,
    total,
    worst,
)

# Accepted / drafted tokens, from the requests that were seen, and from vLLM's own counters.
ACCEPTANCE_BY_NAMESPACE = ratio(MODEL, "engine_accepted_tokens_total", "engine_draft_tokens_total")
ACCEPTANCE_BY_POD = ratio(POD, "engine_accepted_tokens_total", "engine_draft_tokens_total")
DRAFTS_BY_POD = total(POD, "engine_drafts_total")


def verdict_code(by: str, metric: str = "verdict", *, over_time: bool = False) -> str:
    """The worst verdict of each group, as a number.

    4 loses, 3 a pod is missing, 2 breaks even, 1 pays, 0 too little data. ``over_time``: the worst
    within each step, for a band; else as of now.
    """
    read = banded if over_time else lately

    def held(name: str) -> str:
        return worst(by, read(series(metric, f'verdict="{name}"')))

    loses = 'verdict="net_negative"'
    known = worst(by, f"last_over_time({series(metric, loses)}[1h])")
    gone = missing(POD, series("model_verdict", loses))
    within = ", ".join(label for label in POD.split(", ") if label in by.split(", "))
    return (
        f"4 * ({held('net_negative')} == 1) or 3 + 0 * ({known} and on ({within}) {gone}) "
        f"or 2 * ({held('break_even')} == 1) or {held('net_positive')}"
    )


def _model_verdict(name: str) -> str:
    named = series("model_verdict", f'verdict="{name}"')
    return f"sum by ({POD}) ({named})"


def shown(firing: str) -> str:
    """Those of the alerts that fire that Alertmanager would send, by the shipped configuration.

    An alert that another one explains is inhibited.
    """
    for rule in inhibitions():
        source, target = (
            f"ALERTS{{{', '.join((FIRES, *matchers))}}}" for matchers in (rule.source, rule.target)
        )
        firing += f" unless ({target} and on ({', '.join(rule.equal)}) {source})"
    return f"({firing})"


LOSING_PODS = f"count({_model_verdict('net_negative')} == 1) or on () vector(0)"

FIRING = shown(alerts('alertstate="firing"'))

# When each firing alert's condition came to hold, in milliseconds since 1970.
FIRING_SINCE = f"({alerts(name='ALERTS_FOR_STATE')} and ignoring (alertstate) {FIRING}) * 1000"

# Where acceptance is worth its cost, as measured: of the pods where that is lowest and, if they
# differ, highest. Past 1 no acceptance is enough.
_BY_ACCEPTANCE, _UNJUDGED = 'basis="acceptance"', 'verdict="insufficient_data"'
_BREAK_EVEN = f"clamp_max({lately(series('break_even_acceptance_ratio'))}, 1)"
BREAK_EVEN = least("", _BREAK_EVEN)
BREAK_EVEN_HIGHEST = f"{worst('', _BREAK_EVEN)} > 1.05 * {BREAK_EVEN}"


# 1 for each pod that the rule of thumb judges: the basis is said of pods without a verdict, too.
JUDGED_BY_ACCEPTANCE = (
    f"({lately(series('model_verdict_basis', _BY_ACCEPTANCE))} == 1 "
    f"unless on ({POD}) {lately(series('model_verdict', _UNJUDGED))} == 1)"
)


def by_rule_of_thumb(name: str) -> str:
    """A threshold of the acceptance rate, while that rate judges.

    It has no value where a selected pod has a measured break-even.
    """
    return f"{threshold(name)} and group({JUDGED_BY_ACCEPTANCE}) unless {BREAK_EVEN}"
