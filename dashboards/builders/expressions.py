"""Expressions that several panels use."""

from typing import Final

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

_BY_ACCEPTANCE: Final = 'basis="acceptance"'
_UNJUDGED: Final = 'verdict="insufficient_data"'
# What says of each metric of verdicts what it is based on, and the labels that both have.
_BASES: Final = {
    "verdict": ("verdict_basis", f"{POD}, temperature"),
    "model_verdict": ("model_verdict_basis", POD),
    "engine_verdict": ("model_verdict_basis", POD),
}

# Accepted / drafted tokens, from the requests that were seen, and from vLLM's own counters.
ACCEPTANCE_BY_NAMESPACE = ratio(MODEL, "engine_accepted_tokens_total", "engine_draft_tokens_total")
ACCEPTANCE_BY_POD = ratio(POD, "engine_accepted_tokens_total", "engine_draft_tokens_total")
DRAFTS_BY_POD = total(POD, "engine_drafts_total")


def has_verdict(metric: str, name: str, *, over_time: bool = False) -> str:
    """1 for each that has this verdict, 0 for the others.

    ``metric`` is ``verdict``, ``model_verdict`` or ``engine_verdict``. ``over_time``: if it had it
    within the step, for a band.
    """
    read = banded if over_time else lately
    return read(series(metric, f'verdict="{name}"'))


def measured_loss(metric: str, *, over_time: bool = False) -> str:
    """1 for each that loses by a measured time, 0 for the others, without those judged by the rule.

    A model that has collapsed loses, too.
    """
    read = banded if over_time else lately
    loses = has_verdict(metric, "net_negative", over_time=over_time)
    by_rule, labels = _by_rule(metric, over_time=over_time)
    measured = f"({loses} unless on ({labels}) {by_rule})"
    if metric != "model_verdict":
        return measured
    return f"({read(series('model_collapsed'))} == 1 or {measured})"


def unmeasured(metric: str, *, over_time: bool = False) -> str:
    """1 for each that the rule of thumb judges and does not call a loss."""
    read = banded if over_time else lately
    judged = read(series(metric, 'verdict=~"break_even|net_positive"'))
    by_rule, labels = _by_rule(metric, over_time=over_time)
    return f"({judged} == 1 and on ({labels}) {by_rule})"


def _by_rule(metric: str, *, over_time: bool) -> tuple[str, str]:
    """What selects the series that the rule of thumb judges, and the labels to match them by."""
    read = banded if over_time else lately
    basis, labels = _BASES[metric]
    return f"{read(series(basis, _BY_ACCEPTANCE))} == 1", labels


def verdict_code(by: str, metric: str = "verdict", *, over_time: bool = False) -> str:
    """The worst verdict of each group, as a number.

    6 loses, 5 a pod is missing, 4 low by the rule of thumb and not measured, 3 not measured, 2
    breaks even, 1 pays, 0 no verdict yet. ``over_time``: the worst within each step, for a band;
    else as of now.
    """

    def held(name: str) -> str:
        return worst(by, has_verdict(metric, name, over_time=over_time))

    loses = 'verdict="net_negative"'
    known = worst(by, f"last_over_time({series(metric, loses)}[1h])")
    gone = missing(POD, series("model_verdict", loses))
    within = ", ".join(label for label in POD.split(", ") if label in by.split(", "))
    return (
        f"6 * ({worst(by, measured_loss(metric, over_time=over_time))} == 1)"
        f" or 5 + 0 * ({known} and on ({within}) {gone})"
        f" or 4 * ({held('net_negative')} == 1)"
        f" or 3 * {worst(by, unmeasured(metric, over_time=over_time))}"
        f" or 2 * ({held('break_even')} == 1) or {held('net_positive')}"
    )


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


FIRING = shown(alerts('alertstate="firing"'))

# When each firing alert's condition came to hold, in milliseconds since 1970.
FIRING_SINCE = f"({alerts(name='ALERTS_FOR_STATE')} and ignoring (alertstate) {FIRING}) * 1000"

# Where acceptance is worth its cost, as measured: of the pods where that is lowest and, if they
# differ, highest. Past 1 no acceptance is enough.
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
