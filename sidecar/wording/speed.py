"""Words for a speedup: how certain it is, why there is none, and what the baseline is worth."""

from collections.abc import Sequence
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.plain import context_range
from sidecar.analysis.speed.speedup import Held, Speedup
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.numbers import duration, latency

_MEASURE: Final = "specdec-sidecar baseline --url URL --load 1,2,4,8,16 --out baseline.yaml"
_WITHOUT_CONTEXT: Final = (
    "the baseline does not say at which context it was measured, as in files of earlier versions"
)
_UNTOLD_CONTEXT: Final = (
    "the baseline was measured for too short a time, or on too noisy a machine, to tell at which"
    " context"
)
_LONGER: Final = " --duration 20m"
_TIMES_SHORTER: Final = 8  # than the traffic's context: the other one to measure, if none was
_WITHHELD: Final = {
    Withheld.NO_STEPS: (
        "vLLM exports no step times, or its metrics are sums over several processes, as with"
        " several API servers or with PROMETHEUS_MULTIPROC_DIR; the plug-in has step times"
    ),
    Withheld.ITL_PER_TOKEN: (
        "this vLLM's inter-token latency has one observation per token, so it does not show how"
        " long a step takes; load the plug-in into vLLM to get step times"
    ),
    Withheld.NO_REFERENCE: (
        "the step time without speculation is not known; measure it on a vLLM that does not"
        f" speculate: `{_MEASURE}`"
    ),
    Withheld.OTHER_MODEL: "the baseline does not contain the model that this vLLM serves",
    Withheld.LOAD: (
        "the baseline was not measured with this number of running requests; add it to --load"
    ),
    Withheld.CONTEXT: (
        "the baseline was not measured at the context of this traffic; measure it again with"
        " --context"
    ),
    Withheld.TOO_LITTLE: "not enough requests yet",
}
CONTEXTS: Final = ("context, tokens", "speedup", "with speculation", "without (baseline)")


def why_withheld(model: ModelReport) -> str:
    """Why a model has no speedup and what to do, as a clause; empty if it has one."""
    speed = model.speed
    if speed is None or speed.withheld is None:
        return ""
    if speed.withheld is Withheld.CONTEXT and model.plain_steps and speed.steps is not None:
        return _other_context(model.plain_steps, speed.steps.running, speed.steps.context)
    return _WITHHELD[speed.withheld]


def _other_context(times: PlainStepTimes, running: float, context: float | None) -> str:
    if context is None:
        return "how many tokens the requests hold is not known"

    holds = f"requests hold {context:,.0f} tokens on average"
    if not times.contexts:
        shorter = max(context / _TIMES_SHORTER, 1.0)
        return f"{holds}, and {_without_context(times)}; {_again(times, (shorter, context))}"

    low, high = context_range(times, running)
    again = _again(times, (min(low, context), max(high, context)))
    if times.slopes and not times.prefill_tokens and context <= high:
        return (
            "the baseline does not say what prefill costs; with prompts of 64 tokens or more,"
            f" {again}"
        )
    between = f"with {low:,.0f} to {high:,.0f}" if times.slopes else f"only with {low:,.0f}"
    return f"{holds}, and the baseline was measured {between}; {again}"


def baseline_problem(times: PlainStepTimes) -> str:
    """Why a baseline never gives a speedup and what to do, as a clause; empty if it may."""
    if times.contexts:
        return ""
    return f"{_without_context(times)}, so there is no speedup; {_again(times)}"


def _without_context(times: PlainStepTimes) -> str:
    """Why times have no contexts; a file with a source is of no version that never has any."""
    return _WITHOUT_CONTEXT if times.source is None else _UNTOLD_CONTEXT


def _again(times: PlainStepTimes, contexts: Sequence[float] = ()) -> str:
    """That a baseline has to be measured again, at its loads, with prompts of these lengths."""
    loads = ",".join(str(max(round(running), 1)) for running in times.running)
    lengths = ",".join(f"{context:.0f}" for context in contexts)
    with_lengths = f" --context {lengths}" if lengths else ""
    is_too_short = times.source is not None and not times.contexts
    options = f"--load {loads}{with_lengths}{_LONGER if is_too_short else ''}"
    command = f"specdec-sidecar baseline --url URL {options} --out baseline.yaml"
    return f"measure it again on a vLLM that does not speculate: `{command}`"


def plus_minus(speedup: Speedup) -> str:
    """The ratio, with twice its standard error."""
    return f"{speedup.ratio:.2f} ± {CONFIDENCE * speedup.error:.2f}"


def held_sentence(held: Held) -> str:
    """That a speedup is not of now."""
    return f"The speedup is that of {duration(held.age)} ago, the last one that was known."


def baseline_sentence(times: PlainStepTimes, now: float) -> str:
    """How old a baseline is and what it was measured with; ``now`` is in Unix seconds."""
    parts = []
    if times.measured is not None:
        parts.append(f"{duration(max(now - times.measured.timestamp(), 0.0))} ago")

    loads = _range(times.running)
    parts.append(f"with {loads} {'request' if loads == '1' else 'requests'} running")
    if times.contexts:
        ranges = times.context_ranges or tuple((one, one) for one in times.contexts)
        ends = [end for pair in ranges for end in pair]
        parts.append(f"contexts of {_range(ends)} tokens")

    if times.prefill_tokens:
        sizes = [size for row in times.prefill_tokens for size in row]
        parts.append(f"prompts of {_range(sizes)} tokens")

    source = {"page": "from vLLM's page", "plugin": "by the plug-in", None: ""}[times.source]
    if source:
        parts.append(source)

    text = f"Baseline measured {', '.join(parts)}."
    if times.drift:
        text += f" The machine's speed is known to ± {100 * CONFIDENCE * times.drift:.0f} %."

    return text


def _range(values: Sequence[float]) -> str:
    low = min(values)
    high = max(values)
    return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f} to {high:,.0f}"


def context_rows(model: ModelReport) -> list[Sequence[str]]:
    """A row for each context at which the speedup is known."""
    return [
        (label, plus_minus(found), latency(found.actual_seconds), latency(found.plain_seconds))
        for label, found in model.contexts.items()
    ]
