"""Which acceptance rate breaks even, by the sizes of target and draft: a range, not a measurement.

A step that speculates verifies 1 + K tokens of each request in one pass of the target, and drafts
in other passes. It breaks even with as many tokens as it takes longer than a plain step (L*), so at
the acceptance rate (L* - 1) / K. How long a pass takes is between two ways to see it (the roofline
of Williams et al., 2009): it waits for its weights and for what attention reads, or for computing.
What a model's configuration does not tell is assumed, once for the cheapest step that speculates
and once for the dearest; ``_GPU`` and ``_CPU`` have the values, and where they come from.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sidecar.sizes.parameters import PassSize

_BYTES: Final = 2.0  # of a weight, or of a value in the KV cache, that is not quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A target, or what drafts for it.

    ``precisions`` are the fewest and the most bytes that a weight may have. ``layers`` are those of
    a pass, ``cached`` the values that all of them cache for a token. ``gpus`` share it.
    """

    size: PassSize
    precisions: tuple[float, float]
    layers: int
    cached: float
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine's steps are like: all are means.

    ``requests`` decode in one, ``drafted`` tokens are drafted for each of them, above 0, each in a
    pass of the draft. ``context`` is what a request holds in the KV cache, in tokens; ``seconds``
    is how long a step takes.
    """

    requests: float
    drafted: float
    context: float
    seconds: float


@dataclass(frozen=True, slots=True)
class BreakEvenRange:
    """Acceptance rates between which one breaks even; where it is above 1, none does."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assumed:
    """What no configuration tells.

    Computing ``balance`` tokens takes as long as reading weights of 16 bits. ``attention`` reads
    the context for each request or for each of its tokens, or does not matter. A pass of the draft
    takes ``pass_seconds`` for what is not in its layers, and a step that speculates takes
    ``step_seconds`` more than its passes.

    ``is_dear``: computing comes on top of reading, at 16 bits, and else the shorter one is hidden.
    The target's weights have the fewest bytes and the draft's the most, and else the other way
    round. Each token chooses its experts by itself, and else those of a request choose the same.
    Layers that do not fill a GPU take equally long whatever their size: a pass of the draft takes
    what its size or its number of layers says, the longer, and else the shorter.
    """

    is_dear: bool
    balance: float
    attention: Literal["request", "token", "none"]
    pass_seconds: float = 0.0
    step_seconds: float = 0.0


# Balance on GPUs: of the data sheets, dense 16-bit operations ÷ bytes a second, from A100's 153 to
# L40S's 419 (RTX 4090 164, B200 281, H100 295); for the least, two thirds of the operations. On
# CPUs: from two cores with AVX-512, where 8 to 32 tokens take as long as the weights
# (docs/measurements/break-even.md), to many cores with AMX. Seconds: vLLM issue 20780, where a pass
# of a head takes 0.3 to 1.0 ms more than an H100 takes to read it, and a step up to 1.1 ms more
# than its passes. It names no GPU, and is taken for an H100 by its 7.07 ms a token. On the CPU, the
# lab's steps with n-gram.
_CHEAP_GPU: Final = _Assumed(is_dear=False, balance=420, attention="request")
_DEAR_GPU: Final = _Assumed(
    is_dear=True, balance=100, attention="none", pass_seconds=0.001, step_seconds=0.001
)
_CHEAP_CPU: Final = _Assumed(is_dear=False, balance=200, attention="request")
_DEAR_CPU: Final = _Assumed(
    is_dear=True, balance=8, attention="token", pass_seconds=0.001, step_seconds=0.003
)


def break_even(target: Model, draft: Model, load: Load, *, is_cpu: bool) -> BreakEvenRange:
    """The acceptance rates between which speculation breaks even at this load."""
    cheap, dear = (_CHEAP_CPU, _DEAR_CPU) if is_cpu else (_CHEAP_GPU, _DEAR_GPU)
    low = _length(target, draft, load, cheap)
    high = _length(target, draft, load, dear)
    return BreakEvenRange((low - 1) / load.drafted, (high - 1) / load.drafted)


def _length(target: Model, draft: Model, load: Load, assumed: _Assumed) -> float:
    """L*: how long a step takes, in plain steps."""
    verified = 1 + load.drafted
    precision = target.precisions[0 if assumed.is_dear else 1]
    plain = _pass(target, precision, load, 1.0, assumed)
    length = _pass(target, precision, load, verified, assumed) / plain

    # A pass of the draft has at most as much to do besides its layers as a plain step takes.
    longest = length + load.drafted + 1
    precision = draft.precisions[1 if assumed.is_dear else 0]
    first = _pass(draft, precision, load, verified, assumed)  # catches up with the target
    later = _pass(draft, precision, load, 1.0, assumed)
    by_layers = plain * draft.layers / target.layers
    one_of = max if assumed.is_dear else min
    first = one_of(first, by_layers)
    later = one_of(later, by_layers)
    passes = min(load.drafted, 1.0) * first + max(load.drafted - 1, 0.0) * later
    length += passes / plain

    left = load.seconds - load.drafted * assumed.pass_seconds - assumed.step_seconds
    with_overhead = length * load.seconds / left if left > 0 else longest
    return max(length, min(with_overhead, longest))


def _pass(
    model: Model, precision: float, load: Load, tokens_each: float, assumed: _Assumed
) -> float:
    """How long a pass takes with so many tokens of each request, in bytes read by each GPU.

    ``precision`` is the bytes of a weight; a quantization leaves the output matrix at 16 bits.
    """
    size = model.size
    tokens = load.requests * tokens_each
    weights = size.read(tokens if assumed.is_dear else load.requests) - size.output
    reading = weights * precision + size.output * max(precision, _BYTES)
    computing = tokens * size.active * (_BYTES if assumed.is_dear else precision) / assumed.balance

    attending = {"request": load.requests, "token": tokens, "none": 0.0}[assumed.attention]
    context = attending * load.context * model.cached * _BYTES
    busy = reading + computing if assumed.is_dear else max(reading, computing)
    return (busy + context) / model.gpus
