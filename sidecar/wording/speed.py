"""Words for a speedup: how certain it is, why there is none, and what the baseline is worth."""

from collections.abc import Sequence
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.estimate import Unsized
from sidecar.analysis.speed.plain import step_time
from sidecar.analysis.speed.speedup import Held, Speedup
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.numbers import duration, latency, percent

_SOCKET: Final = "--plugin-socket PATH"
_MEASURE: Final = (
    f"specdec-sidecar baseline --url URL {_SOCKET} --load 1,2,4,8,16 --out baseline.yaml"
)
_WITHHELD: Final = {
    Withheld.NO_STEPS: "only the plug-in tells how long this vLLM's steps take",
    Withheld.NO_REFERENCE: (
        "the step time without speculation is not known; measure it on a vLLM that does not"
        f" speculate: `{_MEASURE}`"
    ),
    Withheld.OTHER_MODEL: "the baseline does not contain the model that this vLLM serves",
    Withheld.OTHER_ACCELERATOR: (
        "the baseline was measured on another accelerator than this vLLM's; measure one there, on a"
        f" vLLM that does not speculate: `{_MEASURE}`"
    ),
    Withheld.LOAD: (
        "the baseline was not measured with this number of running requests; add it to --load"
    ),
    Withheld.CONTEXT: (
        "the baseline was not measured at the context of this traffic; measure it again with"
        " --context"
    ),
    Withheld.TOO_LITTLE: "not enough requests yet",
}
_UNSIZED: Final = {
    Unsized.LAYERS: "some of the target's layers keep a state, and their sizes are not known",
    Unsized.EXPERTS: "how many experts a token passes is not known",
    Unsized.METHOD: "what this method takes is not known",
}
CONTEXTS: Final = ("context, tokens", "speedup", "with speculation", "without (baseline)")


def why_withheld(model: ModelReport) -> str:
    """Why a model has no speedup and what to do, as a clause; empty if it has one."""
    speed = model.speed
    if speed is None or speed.withheld is None:
        return ""
    if speed.withheld is Withheld.CONTEXT and model.plain_steps and speed.steps is not None:
        return _other_context(model.plain_steps, speed.steps.context)
    return _WITHHELD[speed.withheld]


def _other_context(times: PlainStepTimes, context: float | None) -> str:
    if context is None:
        return "how many tokens the requests hold is not known"

    low, high = times.context_range
    again = _again(times, (min(low, context), max(high, context)))
    if times.context_seconds and times.prefill_seconds is None and context <= high:
        return (
            "the baseline does not say what prefill costs; with prompts of 64 tokens or more,"
            f" {again}"
        )

    measured = f"with {low:,.0f} to {high:,.0f}"
    if not times.context_seconds:
        measured = f"only with {times.context:,.0f}"
    holds = f"requests hold {context:,.0f} tokens on average"
    return f"{holds}, and the baseline was measured {measured}; {again}"


def _again(times: PlainStepTimes, contexts: Sequence[float]) -> str:
    """That a baseline has to be measured again, at its loads, with prompts of these lengths."""
    loads = ",".join(str(max(round(running), 1)) for running in times.running)
    lengths = ",".join(f"{context:.0f}" for context in contexts)
    options = f"{_SOCKET} --load {loads} --context {lengths}"
    command = f"specdec-sidecar baseline --url URL {options} --out baseline.yaml"
    return f"measure it again on a vLLM that does not speculate: `{command}`"


def plus_minus(speedup: Speedup) -> str:
    """The ratio, with twice its standard error."""
    return f"{speedup.ratio:.2f} ± {CONFIDENCE * speedup.error:.2f}"


def estimate_sentence(model: ModelReport) -> str:
    """Which acceptance rate breaks even by the sizes of the models; empty if they do not tell."""
    found = model.estimate
    if found is None or found.low is None or found.high is None:
        return ""

    rates = f"somewhere from {percent(found.low)} to {percent(found.high)} accepted"
    if found.high > 1:
        rates = f"from {percent(found.low)} accepted on, or at no rate"
    if found.low > 1:
        rates = "at no acceptance rate"
    return f"By the sizes of the models, this load breaks even {rates}; measure to know."


def unsized_hint(model: ModelReport) -> str:
    """Why the sizes of the models do not tell what breaks even; empty if that goes without saying.

    Of dimensions that no hello has there is nothing to say.
    """
    found = model.estimate
    why = _UNSIZED.get(found.unsized) if found is not None and found.unsized else None
    return f"What breaks even is not estimated by the sizes of the models: {why}." if why else ""


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
    parts.append(f"contexts of {_range(times.context_range)} tokens")
    text = f"Baseline measured {', '.join(parts)}."
    steps = [step_time(times, load) for load in times.running]
    error = CONFIDENCE * max(step.error / step.seconds for step in steps)
    return f"{text} Step times are known to ± {100 * error:.1f} %." if error else text


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
