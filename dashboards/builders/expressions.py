"""Expressions that several panels use."""

from typing import Final

from dashboards.builders.inhibitions import FIRES, inhibitions
from dashboards.builders.query import (
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
from dashboards.builders.verdicts import Rank

_BY_ACCEPTANCE: Final = 'basis="acceptance"'
_UNJUDGED: Final = 'verdict="insufficient_data"'
_LOSES: Final = 'verdict="net_negative"'
# What says of each metric of verdicts what it is based on, and the labels that both have.
_BASES: Final = {
    "verdict": ("verdict_basis", f"{POD}, temperature"),
    "model_verdict": ("model_verdict_basis", POD),
    "engine_verdict": ("model_verdict_basis", POD),
}
# The speedups by which each may be judged.
_SPEEDUPS: Final = {"verdict": "speedup_ratio", "model_verdict": "engine_speedup_ratio"}

# Pods that are configured to draft and draft nothing.
_NOTHING_DRAFTED: Final = series("finding", 'finding="not_speculating"')
STOPPED: Final = f"({lately(_NOTHING_DRAFTED)} == 1)"

# Accepted / drafted tokens, from the requests that were seen, and from vLLM's own counters.
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


def guessed(metric: str, name: str, *, over_time: bool = False) -> str:
    """1 for each that has this verdict by the rule of thumb alone."""
    by_rule, labels = _by_rule(metric, over_time=over_time)
    return f"({has_verdict(metric, name, over_time=over_time)} == 1 and on ({labels}) {by_rule})"


def unjudged(metric: str, *, over_time: bool = False) -> str:
    """1 for each that has enough traffic and no verdict all the same.

    ``metric`` is ``verdict`` or ``model_verdict``.
    """
    read = banded if over_time else lately
    basis, labels = _BASES[metric]
    without = has_verdict(metric, "insufficient_data", over_time=over_time)
    return f"({without} == 1 and on ({labels}) {read(series(basis))})"


def undecided(metric: str, *, over_time: bool = False) -> str:
    """Those of ``unjudged`` whose time or acceptance rate will decide."""
    by_rule, labels = _by_rule(metric, over_time=over_time)
    speedups = series(_SPEEDUPS[metric])
    timed = f"last_over_time({speedups}[1h])"  # one that is withheld decides for as long
    if over_time:
        timed = f"({banded(speedups)} or {timed})"
    return f"({unjudged(metric, over_time=over_time)} and on ({labels}) ({by_rule} or {timed}))"


def _by_rule(metric: str, *, over_time: bool) -> tuple[str, str]:
    """What selects the series that the rule of thumb judges, and the labels to match them by."""
    read = banded if over_time else lately
    basis, labels = _BASES[metric]
    return f"{read(series(basis, _BY_ACCEPTANCE))} == 1", labels


def verdict_rank(
    by: str, metric: str = "verdict", *, plain: str = "", over_time: bool = False
) -> str:
    """The worst verdict of each group, as a ``Rank``.

    ``metric`` is ``verdict`` or ``model_verdict``; ``plain`` are groups with a pod that does not
    speculate. ``over_time``: the worst within each step, for a band; else as of now.
    """
    known = worst(by, f"last_over_time({series(metric, _LOSES)}[1h])")
    # A pod that answers and drafts nothing has no verdict on its model, and is not missing.
    gone = missing(POD, series("engine_verdict", _UNJUDGED))
    within = ", ".join(label for label in POD.split(", ") if label in by.split(", "))
    loses = worst(by, measured_loss(metric, over_time=over_time))
    low = worst(by, has_verdict(metric, "net_negative", over_time=over_time))
    # of the pods that speculate, as others have a verdict on the model, too
    unjudged_engines = has_verdict("engine_verdict", "insufficient_data", over_time=over_time)
    little = worst(by, f"({unjudged_engines} unless on ({POD}) {STOPPED})")
    if metric == "verdict":  # a temperature without traffic is none to speak of
        little = f"({total(by, 'draft_tokens_total')} > 0)"
    found = [
        f"{Rank.LOSES} * ({loses} == 1)",
        f"{Rank.MISSING} + 0 * ({known} and on ({within}) {gone})",
        f"{Rank.LOW} * ({low} == 1)",
        *ranked(by, metric, over_time=over_time),
        f"{Rank.TOO_LITTLE} + 0 * {little}",
    ]
    found += [f"{Rank.NO_SPECULATION} * {plain}"] if plain else []
    return " or ".join(found)


def ranked(by: str, metric: str, *, over_time: bool = False) -> list[str]:
    """The ranks from ``MEDIUM`` to ``UNMEASURED``, worst first, each with the groups of it."""

    def held(name: str) -> str:
        return has_verdict(metric, name, over_time=over_time)

    def guess(name: str) -> str:
        return guessed(metric, name, over_time=over_time)

    conditions = {
        Rank.MEDIUM: guess("break_even"),
        Rank.EVEN: held("break_even"),
        Rank.HIGH: guess("net_positive"),
        Rank.PAYS: held("net_positive"),
        Rank.UNDECIDED: undecided(metric, over_time=over_time),
        Rank.UNMEASURED: unjudged(metric, over_time=over_time),
    }
    return [f"{rank} * ({worst(by, each)} == 1)" for rank, each in conditions.items()]


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
