"""What is known of the pods, also of those whose series are gone.

A dead pod is never green, and it never lacks a row.

A pod is known for an hour. Without it, its verdict stands for three minutes, as in the rules; then
it is unknown.
"""

from typing import Final

from dashboards.builders.expressions import (
    ACCEPTANCE_BY_POD,
    JUDGED_BY_ACCEPTANCE,
    has_verdict,
    measured_loss,
    ranked,
)
from dashboards.builders.panels import Mapping
from dashboards.builders.query import (
    MODEL,
    PHRASES,
    POD,
    SIDECAR,
    known,
    lately,
    least,
    missing,
    own_threshold,
    phrase,
    reached,
    recorded,
    series,
    worst,
)
from dashboards.builders.verdicts import PURPLE, VERDICTS, Rank

STATES: Final[Mapping] = VERDICTS | {
    Rank.MISSING: ("gone", PURPLE),
    Rank.VLLM_DOWN: ("vLLM down", "red"),
    Rank.SIDECAR_DOWN: ("sidecar down", "red"),
    Rank.NEVER_SCRAPED: ("never scraped", "red"),
}
MODEL_STATES: Final[Mapping] = VERDICTS | {Rank.VLLM_DOWN: ("all pods down", "red")}

# What is on the page of every sidecar that reaches its vLLM, and on no other.
_RUNNING: Final = series("requests_running")
# Every pod that is there or is missing; without a model if its vLLM has not been up.
_WITH_MODEL: Final = known(POD, _RUNNING)
_SIDECARS: Final = known(SIDECAR, series("build_info"))
# Targets that Prometheus could never scrape; of them nothing is known but where they are.
UNSCRAPED: Final = recorded("unscraped:bool", "sidecar")
PODS: Final = f"({_WITH_MODEL} or on ({SIDECAR}) {_SIDECARS} or on ({SIDECAR}) {UNSCRAPED})"
MODELS: Final = f"group by ({MODEL}) ({_WITH_MODEL})"
UP: Final = f"group by ({POD}) ({_RUNNING})"
DOWN: Final = f"{reached()} == 0 or {series('up')} == 0"
# Models of which pods are still targets, and none is up.
_DOWN_MODELS: Final = (
    f"group by ({MODEL}) ({_WITH_MODEL} and on ({SIDECAR}) ({DOWN})) unless on ({MODEL}) {UP}"
)


def _verdicts(by: str, unknown: str, *, over_time: bool = False) -> str:
    """Each group's worst verdict as its ``Rank``; ``unknown`` are groups that miss a pod.

    A part that loses is a temperature or an engine; of a model, also fewer than half of its pods.
    """

    def held(metric: str, name: str) -> str:
        return has_verdict(metric, name, over_time=over_time)

    def lost(metric: str) -> str:
        return measured_loss(metric, over_time=over_time)

    metrics = ("model_verdict", "verdict", "engine_verdict")
    whole, *parts = map(lost, metrics)
    loses = f"{worst(by, whole)} == 1"
    if by == MODEL:
        loses = _half_of_pods(over_time=over_time)
        parts.append(whole)
    in_part = worst(by, " or ".join(parts))
    low = worst(by, " or ".join(held(metric, "net_negative") for metric in metrics))
    return " or ".join(
        (
            f"{Rank.LOSES} * ({loses})",
            f"{Rank.IN_PART} * ({in_part} == 1)",
            f"{Rank.MISSING} * {unknown}",
            f"{Rank.LOW} * ({low} == 1)",
            *ranked(by, "model_verdict", over_time=over_time),
            worst(by, f"{recorded('speculates:bool', 'pod')} == {Rank.NO_SPECULATION}"),
        )
    )


def _half_of_pods(*, over_time: bool = False) -> str:
    """1 for each model of whose judged pods at least half lose."""
    lost = measured_loss("model_verdict", over_time=over_time)
    judged = f"{has_verdict('model_verdict', 'insufficient_data', over_time=over_time)} == 0"
    twice = f"2 * sum by ({MODEL}) ({lost})"
    return f"({twice} >= bool count by ({MODEL}) ({judged}) == 1)"


_AS_DOWN: Final = worst(
    SIDECAR,
    f"({reached()} == 0) + {Rank.SIDECAR_DOWN} or ({series('up')} == 0) + {Rank.VLLM_DOWN}"
    f" or {Rank.NEVER_SCRAPED} * {UNSCRAPED}"
    f" or {Rank.MISSING} * {missing(SIDECAR, series('build_info'))}",
)
# Each known pod's state: what is down comes first, then the verdict.
STATE: Final = (
    f"({PODS} * on ({SIDECAR}) group_left () {_AS_DOWN}"
    f" or {_verdicts(POD, missing(POD, _RUNNING))} or {PODS})"
)


def model_state(*, over_time: bool = False) -> str:
    """Each known model's worst verdict.

    Down if all its pods are; without one of its pods unknown, unless another one loses.
    """
    unknown = f"group by ({MODEL}) {missing(POD, _RUNNING)}"
    verdicts = _verdicts(MODEL, unknown, over_time=over_time)
    return f"{Rank.VLLM_DOWN} * {_DOWN_MODELS} or {verdicts} or {MODELS}"


LOSING: Final = measured_loss("model_verdict")
LOSE: Final = _half_of_pods()
# The acceptance rate at which a pod breaks even: as measured, or the rule of thumb where that
# judged it.
MEASURED: Final = worst(POD, lately(series("break_even_acceptance_ratio")))
RULED: Final = (
    f"({JUDGED_BY_ACCEPTANCE} * on ({SIDECAR}) group_left ()"
    f" {own_threshold('acceptance_net_negative')} unless on ({POD}) {MEASURED})"
)
BREAK_EVEN: Final = f"({MEASURED} or on ({POD}) {RULED})"
SPEEDUP: Final = f"avg by ({POD}) ({lately(series('engine_speedup_ratio'))})"


# From the best verdict on, as measured or not; one that is not known yet is no reason to be shown.
_RANKED: Final = ("net_positive", "break_even", "net_negative")
_STANDING: Final = f"({SPEEDUP} or on ({POD}) {ACCEPTANCE_BY_POD} / on ({POD}) {BREAK_EVEN})"
_BADNESS: Final = " + ".join(
    f"{10 * rank} * max by ({POD}) ({has_verdict('model_verdict', name)})"
    for rank, name in enumerate(_RANKED, start=1)
)
_RANK: Final = f"({_BADNESS} or on ({POD}) 0 * {ACCEPTANCE_BY_POD})"
# Of each model the pod that its row tells of: of those with its worst verdict over all requests,
# that with the lowest speedup or, where none is known, the lowest acceptance beside its break-even.
WORST_POD: Final = (
    f"topk by ({MODEL}) (1, {_RANK} - on ({POD}) clamp_max({_STANDING}, 9) or on ({POD}) {_RANK})"
)


def of_worst(by: str, value: str, verdict: str, labels: str) -> str:
    """In each group ``by`` the lowest value of those with the group's worst ``verdict``.

    A verdict then stands beside a number that it is about. ``verdict`` is a metric and ``labels``
    are what it has in common with the value. Those without a verdict count where no other has one.
    """
    each = [
        least(by, f"{value} and on ({labels}) {has_verdict(verdict, name)} == 1")
        for name in (*reversed(_RANKED), "insufficient_data")
    ]
    return " or ".join(each)


def counted(color: str, **counts: str) -> str:
    """One series with the value of ``color``, and each count as a label.

    Its legend can then say "x of y".
    Counts of ``PHRASES`` are phrases, or nothing where they are 0.
    """
    told = [
        phrase(name, expression) if name in PHRASES else f'count_values("{name}", {expression})'
        for name, expression in counts.items()
    ]
    joined = told[0]
    for name, each in zip([*counts][1:], told[1:], strict=True):
        joined += f" * on () group_left ({name}) {each}"
    return f"0 * {joined} + on () group_left () ({color})"
