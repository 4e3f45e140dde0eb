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
MODEL_STATES: Final[Mapping] = _OF_MODELS | {4: VERDICTS[3]}

_LOSES: Final = 'verdict="net_negative"'
# What is on the page of every sidecar that reaches its vLLM, and on no other.
_RUNNING: Final = series("requests_running")
# Every pod of the last hour; without a model if its vLLM has not been up.
_WITH_MODEL: Final = f"group by ({POD}) (last_over_time({_RUNNING}[1h]))"
_SIDECARS: Final = f"group by ({SIDECAR}) (last_over_time({series('build_info')}[1h]))"
PODS: Final = f"({_WITH_MODEL} or on ({SIDECAR}) {_SIDECARS})"
MODELS: Final = f"group by ({MODEL}) ({_WITH_MODEL})"
UP: Final = f"group by ({POD}) ({_RUNNING})"
DOWN: Final = f"{reached()} == 0 or {series('up')} == 0"


def whole(verdict: str) -> str:
    """1 for each pod with this verdict as a whole, 0 for the others."""
    return lately(series("model_verdict", f'verdict="{verdict}"'))


def at_temperature(verdict: str) -> str:
    """The same for each temperature of each pod."""
    return lately(series("verdict", f'verdict="{verdict}"'))


def _verdicts(by: str, unknown: str = "") -> str:
    """Each group's worst verdict as its state; a part that loses is a temperature or an engine."""
    part = f"{at_temperature('net_negative')} or {lately(series('engine_verdict', _LOSES))}"
    found = [f"6 * ({worst(by, whole('net_negative'))} == 1)", f"5 * ({worst(by, part)} == 1)"]
    found += [unknown] if unknown else []
    found += [
        f"3 * ({worst(by, whole('break_even'))} == 1)",
        f"2 * ({worst(by, whole('net_positive'))} == 1)",
    ]
    return " or ".join([*found, worst(by, f"{recorded('speculates:bool', 'pod')} == 0")])


_AS_DOWN: Final = worst(
    SIDECAR,
    f"({reached()} == 0) + 8 or ({series('up')} == 0) + 7 or 4 *"
    f" {missing(SIDECAR, series('build_info'))}",
)
# Each known pod's state: what is down comes first, then the verdict.
STATE: Final = f"({PODS} * on ({SIDECAR}) group_left () {_AS_DOWN} or {_verdicts(POD)} or {PODS})"
# Each known model's worst verdict: without one of its pods it is unknown, unless another one loses.
MODEL_STATE: Final = (
    f"{_verdicts(MODEL, f'4 * group by ({MODEL}) {missing(POD, _RUNNING)}')} or {MODELS}"
)

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
