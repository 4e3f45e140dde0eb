"""Words for a speedup: how certain it is, why there is none, and what the baseline is worth."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from sidecar.analysis.advice import Advice
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.estimate import Estimate, Unsized
from sidecar.analysis.speed.plain import uncertainty
from sidecar.analysis.speed.speedup import EngineSpeed, Held, Speedup, inexact_baseline
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.numbers import counted, duration, latency, percent, rate_within

_SOCKET: Final = "--plugin-socket PATH"
BASELINE: Final = (
    f"specdec-sidecar baseline --url URL {_SOCKET} --load 1,2,4,8,16 --out baseline.yaml"
)
_WITHHELD: Final = {
    Withheld.NO_STEPS: "only the plug-in tells how long this vLLM's steps take",
    Withheld.NO_REFERENCE: (
        "the step time without speculation is not known; measure it on a vLLM that does not"
        f" speculate: `{BASELINE}`"
    ),
    Withheld.OTHER_MODEL: "the baseline does not contain the model that this vLLM serves",
    Withheld.OTHER_ACCELERATOR: (
        "the baseline was measured on another accelerator than this vLLM's; measure one there, on a"
        f" vLLM that does not speculate: `{BASELINE}`"
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
    Unsized.CPU: "on a CPU, computing takes what no size tells",
}


class Side(Enum):
    """Where an acceptance rate is beside the range that breaks even."""

    ABOVE = auto()
    BELOW = auto()


_SIDES: Final = {
    Side.ABOVE: "above that, so it may well pay",
    Side.BELOW: "below that, so it probably does not pay",
}
_TRAFFIC_DECIDES: Final = "More traffic decides."
CONTEXTS: Final = (
    *("context, tokens", "speedup"),
    *("time per token with speculation", "without (baseline)"),
)


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


def side_by_sizes(found: Estimate | None, rates: Sequence[float]) -> Side | None:
    """On which side of what breaks even by the sizes of the models all ``rates`` are.

    None if they are within it, on both sides, or nothing is known. All count as they are printed.
    """
    if found is None or found.low is None or found.high is None or not rates:
        return None
    if round(100 * min(rates)) > round(100 * found.high):
        return Side.ABOVE
    return Side.BELOW if round(100 * max(rates)) < round(100 * found.low) else None


def estimate_sentence(found: Estimate | None, rates: Sequence[float]) -> str:
    """Which acceptance rate breaks even by the sizes of the models; empty if they do not tell.

    ``rates`` are those that the answer is about, where there are any.
    """
    if found is None or found.low is None or found.high is None:
        return ""

    by_sizes = "By the sizes of the models, this load breaks even"
    if found.low > 1:
        return f"{by_sizes} at no acceptance rate, so speculation probably does not pay."
    known = f"{by_sizes} somewhere from {percent(found.low)} to {percent(found.high)} accepted"
    side = side_by_sizes(found, rates)
    if side is None:
        return f"{known}; measure to know."

    accepted = " to ".join(dict.fromkeys((percent(min(rates)), percent(max(rates)))))
    return f"{known}. {accepted} is {_SIDES[side]}."


def unsized_hint(model: ModelReport) -> str:
    """Why the sizes of the models do not tell what breaks even; empty if that goes without saying.

    Of dimensions that no hello has there is nothing to say.
    """
    found = model.estimate
    why = _UNSIZED.get(found.unsized) if found is not None and found.unsized else None
    return f"What breaks even is not estimated by the sizes of the models: {why}." if why else ""


def break_even_sentence(speed: EngineSpeed) -> str:
    """Which acceptance rate breaks even by the measured times; empty if it is not known."""
    known = break_even(speed.break_even_acceptance, speed.break_even_error, rate_within)
    if known is None:
        return ""
    if not known:
        return "No acceptance rate breaks even at this load."
    return f"Break-even acceptance rate at this load: {known}."


def break_even(
    rate: float | None, error: float | None, shown: Callable[[float, float | None], str]
) -> str | None:
    """What is certain of a break-even acceptance rate, of which ``error`` is the standard error.

    Empty: no rate breaks even; None: nothing is known. ``shown`` gives a rate with its interval.
    """
    if rate is None or (rate > 1 and error is None):
        return None

    least = rate - CONFIDENCE * (error or 0.0)
    if least > 1:
        return ""
    return shown(rate, error) if rate <= 1 else f"above {shown(least, None)}, if any"


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
    error = CONFIDENCE * uncertainty(times)
    known = f"{text} Step times are known to ± {100 * error:.1f} % at the worst load and context."
    return known if error else text


def deciding_sentence(model: ModelReport) -> str:
    """What makes an undecided speedup certain: more traffic, or a more exact baseline."""
    error = inexact_baseline(model.speed, model.plain_steps)
    if error is None:
        return " ".join(filter(None, (_TRAFFIC_DECIDES, _in_either_case(model.advice))))

    return (
        "More traffic alone may not decide: the baseline's step times at this load are only known"
        f" to ± {100 * CONFIDENCE * error:.1f} %. Measure it again, on a machine that does nothing"
        " else."
    )


def _in_either_case(advice: Advice | None) -> str:
    """That another number of draft tokens is faster by time; empty unless it is, and some are."""
    tokens = None if advice is None else advice.tokens
    if tokens is None or tokens.best_seconds is None or not tokens.best:
        return ""
    are = "is" if tokens.best == 1 else "are"
    return (
        f"In either case {counted(tokens.best, 'draft token')} {are} faster than {tokens.now} in"
        " steps that prefill nothing."
    )


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
