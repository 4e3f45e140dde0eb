"""What is known of the pods, also of those whose series are gone.

A dead pod is never green, and it never lacks a row.

A pod is known for an hour. Without it, its verdict stands for three minutes, as in the rules; then
it is unknown.
"""

from typing import Final

from dashboards.builders.expressions import JUDGED_BY_ACCEPTANCE
from dashboards.builders.operator_top import VERDICTS
from dashboards.builders.panels import Mapping
from dashboards.builders.query import (
    MODEL,
    POD,
    SIDECAR,
    banded,
    known,
    lately,
    least,
    missing,
    missing_phrase,
    own_threshold,
    reached,
    recorded,
    series,
    worst,
)

GREY: Final = VERDICTS[0][1]
STATES: Final[Mapping] = {
    0: ("no speculation", GREY),
    1: VERDICTS[0],
    2: VERDICTS[1],
    3: VERDICTS[2],
    4: ("gone", VERDICTS[3][1]),
    5: ("loses in part", "orange"),
    6: VERDICTS[4],
    7: ("vLLM down", "red"),
    8: ("sidecar down", "red"),
}
_OF_MODELS: Final[Mapping] = {code: state for code, state in STATES.items() if code < 7}
_ALL_DOWN: Final = 7
MODEL_STATES: Final[Mapping] = _OF_MODELS | {4: VERDICTS[3], _ALL_DOWN: ("all pods down", "red")}

_LOSES: Final = 'verdict="net_negative"'
# What is on the page of every sidecar that reaches its vLLM, and on no other.
_RUNNING: Final = series("requests_running")
# Every pod that is there or is missing; without a model if its vLLM has not been up.
_WITH_MODEL: Final = known(POD, _RUNNING)
_SIDECARS: Final = known(SIDECAR, series("build_info"))
PODS: Final = f"({_WITH_MODEL} or on ({SIDECAR}) {_SIDECARS})"
MODELS: Final = f"group by ({MODEL}) ({_WITH_MODEL})"
UP: Final = f"group by ({POD}) ({_RUNNING})"
DOWN: Final = f"{reached()} == 0 or {series('up')} == 0"
# Models of which pods are still targets, and none is up.
_DOWN_MODELS: Final = (
    f"group by ({MODEL}) ({_WITH_MODEL} and on ({SIDECAR}) ({DOWN})) unless on ({MODEL}) {UP}"
)


def whole(verdict: str, *, over_time: bool = False) -> str:
    """1 for each pod with this verdict as a whole, 0 for the others.

    ``over_time``: if it had it within the step, for a band.
    """
    read = banded if over_time else lately
    return read(series("model_verdict", f'verdict="{verdict}"'))


def at_temperature(verdict: str, *, over_time: bool = False) -> str:
    """The same for each temperature of each pod."""
    read = banded if over_time else lately
    return read(series("verdict", f'verdict="{verdict}"'))


def _verdicts(by: str, unknown: str = "", *, over_time: bool = False) -> str:
    """Each group's worst verdict as its state; a part that loses is a temperature or an engine."""
    read = banded if over_time else lately
    loses = whole("net_negative", over_time=over_time)
    temperatures = at_temperature("net_negative", over_time=over_time)
    part = f"{temperatures} or {read(series('engine_verdict', _LOSES))}"

    found = [f"6 * ({worst(by, loses)} == 1)", f"5 * ({worst(by, part)} == 1)"]
    found += [unknown] if unknown else []
    found += [
        f"3 * ({worst(by, whole('break_even', over_time=over_time))} == 1)",
        f"2 * ({worst(by, whole('net_positive', over_time=over_time))} == 1)",
    ]

    return " or ".join([*found, worst(by, f"{recorded('speculates:bool', 'pod')} == 0")])


_AS_DOWN: Final = worst(
    SIDECAR,
    f"({reached()} == 0) + 8 or ({series('up')} == 0) + 7 or 4 *"
    f" {missing(SIDECAR, series('build_info'))}",
)
# Each known pod's state: what is down comes first, then the verdict.
STATE: Final = (
    f"({PODS} * on ({SIDECAR}) group_left () {_AS_DOWN}"
    f" or {_verdicts(POD, f'4 * {missing(POD, _RUNNING)}')} or {PODS})"
)


def model_state(*, over_time: bool = False) -> str:
    """Each known model's worst verdict.

    Down if all its pods are; without one of its pods unknown, unless another one loses.
    """
    unknown = f"4 * group by ({MODEL}) {missing(POD, _RUNNING)}"
    verdicts = _verdicts(MODEL, unknown, over_time=over_time)
    return f"{_ALL_DOWN} * {_DOWN_MODELS} or {verdicts} or {MODELS}"


# The acceptance rate at which a pod breaks even: as measured, or the rule of thumb where that
# judged it.
MEASURED: Final = worst(POD, lately(series("break_even_acceptance_ratio")))
RULED: Final = (
    f"({JUDGED_BY_ACCEPTANCE} * on ({SIDECAR}) group_left ()"
    f" {own_threshold('acceptance_net_negative')} unless on ({POD}) {MEASURED})"
)
BREAK_EVEN: Final = f"({MEASURED} or on ({POD}) {RULED})"
SPEEDUP: Final = least(POD, lately(series("engine_speedup_ratio")))


def counted(color: str, **counts: str) -> str:
    """One series with the value of ``color``, and each count as a label.

    Its legend can then say "x of y".
    A count ``missing`` is a phrase, or nothing where it is 0.
    """
    told = [
        missing_phrase(expression) if name == "missing" else f'count_values("{name}", {expression})'
        for name, expression in counts.items()
    ]
    joined = told[0]
    for name, each in zip([*counts][1:], told[1:], strict=True):
        joined += f" * on () group_left ({name}) {each}"
    return f"0 * {joined} + on () group_left () ({color})"
