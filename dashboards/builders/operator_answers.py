"""The operator's first row: does it pay, by how much, why, and is that known of every pod."""

from collections.abc import Mapping as ReadOnly
from typing import Final

from grafana_foundation_sdk.builders import stat

from dashboards.builders.expressions import (
    JUDGED_BY_ACCEPTANCE,
    STOPPED,
    guessed,
    measured_loss,
    undecided,
    unjudged,
)
from dashboards.builders.layout import Line, beside
from dashboards.builders.panels import COUNT, SHARE, TIMES, Mapping, Query, figure
from dashboards.builders.query import (
    POD,
    SIDECAR,
    at_end,
    copied,
    known,
    labelled,
    lately,
    least,
    missing,
    number,
    own_threshold,
    phrase,
    rate,
    recorded,
    series,
    total,
    who,
    worst,
)
from dashboards.builders.verdicts import VERDICTS, Rank

_ANSWERS: Final[Mapping] = {
    3: ("vLLM or sidecar down", "red"),
    2: ("split incomplete", "orange"),
    1: ("live, no plug-in", "blue"),
    0: ("live and complete", "green"),
}


_ENGINES: Final = series("engine_verdict", 'verdict="insufficient_data"')  # of all that speculate
# Pods that answer and do not speculate, though they may be configured to.
PLAIN: Final = (
    f"(group by ({POD}) ({series('requests_running')}) unless on ({POD}) ({lately(_ENGINES)}"
    f" unless on ({POD}) {STOPPED}))"
)
_MISSING: Final = phrase("missing", number(missing(POD, _ENGINES)))


def with_missing(expression: str) -> str:
    """With the label ``missing``, which counts the pods that nothing is known of now.

    Such a pod may be worse than the worst that is known.
    """
    return f"{expression} * on () group_left (missing) {at_end(_MISSING)}"


def answers() -> Line:
    """Four figures."""
    return beside(4, (_pays(), 5), (_how_much(), 9), (_load(), 5), (_live(), 5))


def _counted(code: str, by: str, selector: str) -> str:
    """The highest code, with how many have it and of how many as the labels ``some`` and ``all``.

    All are those that ``selector`` finds or misses, each of which has a code.
    """
    highest = f"max({code})"
    some = f'count_values("some", count(({code}) == on () group_left () {highest}))'
    everyone = f'count_values("all", count({known(by, selector)}))'
    return f"{highest} * on () group_left (some) {some} * on () group_left (all) {everyone}"


def _chosen(conditions: ReadOnly[int, str]) -> str:
    """For each group, the code of the first condition that has a series.

    All conditions have the same labels.
    """
    return " or ".join(f"{code} + 0 * ({condition})" for code, condition in conditions.items())


def _plain() -> str:
    """The code of pods of which none speculates."""
    counted = copied(f'count_values("some", count({PLAIN}))', "all", "some")
    return f"{Rank.NO_SPECULATION} * {counted}"


def _verdict(name: str) -> str:
    return series("model_verdict", f'verdict="{name}"')


def _pays() -> stat.Panel:
    """That speculation loses is remembered for three minutes, that it pays for no moment.

    Engines that do not speculate have no verdict of their own, so their pods do not count beside
    others that do.
    """
    lost = lately(series("verdict", 'verdict="net_negative"'))
    low = f"{lately(_verdict('net_negative'))} or {lost}"
    code = _chosen(
        {
            Rank.LOSES: f"{worst(POD, measured_loss('model_verdict'))} == 1",
            Rank.IN_PART: f"{worst(POD, measured_loss('verdict'))} == 1",
            Rank.MISSING: missing(POD, _ENGINES, at_once=True),
            Rank.LOW: f"{worst(POD, low)} == 1",
            Rank.MEDIUM: worst(POD, guessed("model_verdict", "break_even")),
            Rank.EVEN: f"{worst(POD, _verdict('break_even'))} == 1",
            Rank.HIGH: worst(POD, guessed("model_verdict", "net_positive")),
            Rank.PAYS: f"{worst(POD, _verdict('net_positive'))} == 1",
            Rank.UNDECIDED: worst(POD, undecided("model_verdict")),
            Rank.UNMEASURED: worst(POD, unjudged("model_verdict")),
            Rank.NO_SPECULATION: worst(POD, STOPPED),
            Rank.TOO_LITTLE: worst(POD, _ENGINES),
        }
    )

    return figure(
        "Does speculation pay?",
        "The worst verdict of the selected pods that speculate, and how many have it. Loses in"
        " part: at some temperature. High, medium and low acceptance: by the rule of thumb, at some"
        " temperature at least; there is no baseline. Unknown: nothing is known now of a pod that"
        " had a verdict within the last hour and should be there.",
        "Not measured: run specdec-sidecar baseline --load before you turn it off. Does not pay:"
        " read the findings and the alerts below. If it pays at no temperature, start vLLM"
        " without --speculative-config. If it loses in part, sample the drafts or lower"
        " num_speculative_tokens.",
        Query(
            f"{_counted(code, POD, _ENGINES)} or on () {_plain()}",
            "{{some}} of {{all}} pods",
        ),
        values=VERDICTS,
        empty="no pod that speculates",
    )


ACCEPTANCE: Final = worst(POD, lately(series("model_acceptance_ratio")))
_BREAK_EVEN = worst(POD, lately(series("break_even_acceptance_ratio")))
_MEASURED = lately(series("engine_speedup_ratio"))
_BY_PLAIN_PODS = recorded("speedup:fleet", "pod")
# Of the pods with enough drafts to judge: one that does not speculate has a speedup, too.
_SPEEDUP_BY_POD = (
    f"({labelled(f'avg by ({POD}) ({_MEASURED})', 'basis', 'a baseline')} or on ({POD}) "
    f"{labelled(worst(POD, _BY_PLAIN_PODS), 'basis', 'plain pods')}) and on ({POD}) {ACCEPTANCE}"
)
# The lowest of these over time: without their labels, it costs half.
LOWEST_SPEEDUP: Final = least(
    "",
    f"(avg by ({POD}) ({_MEASURED}) or on ({POD}) {_BY_PLAIN_PODS}) "
    f"and on ({POD}) {lately(series('model_acceptance_ratio'))}",
)
# The pod with the lowest speedup; one without counts by how far its acceptance is from the rule of
# thumb.
_RULE = f"on ({SIDECAR}) group_left () {own_threshold('acceptance_net_negative')}"
WORST: Final = f"on ({POD}) bottomk(1, {_SPEEDUP_BY_POD} or on ({POD}) {ACCEPTANCE} / {_RULE})"


def _how_much() -> stat.Panel:
    """The verdict's numbers, of one pod; a pod that does not answer has no acceptance rate now."""
    answering = f"and on ({POD}) {series('requests_running')}"

    return figure(
        "Speedup and acceptance, worst pod",
        "Time per token without speculation divided by the actual one, at the same load, on the pod"
        " where that is lowest: below 1 speculation slows requests down. Its name says what it is"
        " compared with (a baseline that was measured, or the model's pods that do not speculate),"
        " and of how many pods of the last hour nothing is known now: one of them may be worse."
        " Then that pod's accepted / draft tokens, and the rate at which its load breaks even as"
        " measured (above 100 %: no rate does), or the threshold by the rule of thumb where that"
        " judges.",
        "Without a reference, measure one: specdec-sidecar baseline --load. Until then the"
        " acceptance rate judges. Below its break-even, draft fewer tokens or other ones: the"
        " findings say which.",
        Query(
            who(with_missing(f"(({_SPEEDUP_BY_POD}) and {WORST})")),
            "{{who}}, by {{basis}}{{missing}}",
            unit=TIMES,
        ),
        Query(
            who(with_missing(f"({ACCEPTANCE} and {WORST} {answering})")),
            "accepted, {{who}}{{missing}}",
        ),
        Query(f"{_BREAK_EVEN} and {WORST} {answering}", "breaks even at"),
        Query(f"{JUDGED_BY_ACCEPTANCE} * {_RULE} and {WORST} {answering}", "rule of thumb"),
        unit=SHARE,
        empty="nothing judged now",
    )


def configuration() -> stat.Panel:
    """What the worst pod drafts, and how much of that pays."""
    accepted = f"sum by ({POD}, position) ({rate('engine_accepted_tokens_per_position_total')})"
    rates = (
        f"({accepted} / on ({POD}) group_left () ({total(POD, 'engine_drafts_total')} > 0) and"
        f" {WORST})"
    )

    fewer = f"on ({SIDECAR}) group_left () {own_threshold('acceptance_fewer_tokens')}"
    needed = f"({_BREAK_EVEN} or {ACCEPTANCE} * 0 + {fewer})"
    positions = (
        f"(count by ({POD}) ({rates} >= on ({POD}) group_left () {needed}) or 0 * count by ({POD})"
        f" ({rates}))"
    )

    labels = "method, num_speculative_tokens"
    info = f"topk by ({POD}) (1, {worst(f'{POD}, {labels}', lately(series('speculation_info')))})"
    named = f'label_join({info}, "configuration", ", K ", "method", "num_speculative_tokens")'
    described = f"{positions} * on ({POD}) group_left (configuration) {named}"
    unknown = labelled(positions, "configuration", "K unknown: no plug-in")

    return figure(
        "What it drafts, worst pod",
        "Method and number of draft tokens K of that pod, and how many positions are accepted often"
        " enough to be worth drafting: at least at its break-even, or at acceptance_fewer_tokens"
        " where there is none.",
        "If fewer positions than K are worth drafting, lower num_speculative_tokens to their"
        " number.",
        Query(
            f"{described} or on ({POD}) {unknown}",
            "{{configuration}}",
            unit="prefix:positions that pay: ",
        ),
        unit=COUNT,
        empty="nothing is drafted",
    )


def _load() -> stat.Panel:
    return figure(
        "KV cache and queue",
        "The highest share of the KV cache in use during the last minute, on the worst pod, and the"
        " requests that wait, summed over the selected pods.",
        "Near kv_cache_usage vLLM preempts and queues requests, which widens every gap: first scale"
        " out or lower --max-num-seqs. A lasting queue is overload, under which speculation often"
        " stops paying.",
        Query(worst("", series("kv_cache_usage_peak_ratio")), "KV cache, peak", unit=SHARE),
        Query(f"sum({series('requests_waiting')})", "waiting"),
        empty="unknown",
    )


def _live() -> stat.Panel:
    up, sidecars = worst(SIDECAR, series("up")), series("build_info")
    coverage = series("request_coverage_ratio")
    limit = f"on ({SIDECAR}) group_left () {own_threshold('coverage')}"
    faulty = series("plugin_info", 'state!~"idle|observing"')

    code = _chosen(
        {
            3: f"{up} == 0 or {missing(SIDECAR, sidecars, at_once=True)}",
            2: f"{worst(SIDECAR, faulty)} or"
            f" {worst(SIDECAR, f'{coverage} < {limit} or 2 - {coverage} < {limit}')}",
            1: f"{up} unless {worst(SIDECAR, series('plugin_info'))}",
            0: up,
        }
    )

    return figure(
        "Live, and is the split complete?",
        "Whether Prometheus reaches every sidecar that is a target, each sidecar its vLLM, and"
        " whether the plug-in reports as many draft tokens as vLLM counts: the worst, and how many"
        " pods that is.",
        "Down: check the pod, the vLLM container and Prometheus' targets before anything else on"
        " this page. Incomplete: there is no split by temperature; the plug-in's table and the"
        " sidecar's status page say why.",
        Query(_counted(code, SIDECAR, sidecars), "{{some}} of {{all}} pods"),
        values=_ANSWERS,
        empty="nothing found",
    )
