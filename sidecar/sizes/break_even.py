"""Which acceptance rate breaks even, by the sizes of target and draft: a range, not a measurement.

A step that speculates verifies 1 + K tokens of each request in one pass of the target, and drafts
in other passes. If it takes L* times as long as a plain step, it breaks even with L* tokens per
request, and so at the acceptance rate (L* - 1) / K. How long a pass takes lies between two limits
(the roofline of Williams et al., 2009): it waits for its weights and for what attention reads, or
for computing. What a model's configuration does not say is assumed, once for the cheapest step that
speculates and once for the most expensive one; the comment above ``_CHEAP_GPU`` has the sources.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sidecar.sizes.parameters import PassSize

_BYTES: Final = 2.0  # of a weight, or of a value in the KV cache, that is not quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A target model, or the model or head that drafts for it.

    ``precisions`` are the fewest and the most bytes that a weight may have. ``layers`` is how many
    a pass goes through, ``cached`` how many values all of them cache per token. ``gpus`` share it.
    """

    size: PassSize
    precisions: tuple[float, float]
    layers: int
    cached: float
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine's steps are like, on average.

    ``requests`` decode in a step. For each of them, ``drafted`` tokens are drafted, above 0, one in
    each pass of the draft. Each holds ``context`` tokens in the KV cache. A step takes ``seconds``.
    """

    requests: float
    drafted: float
    context: float
    seconds: float


@dataclass(frozen=True, slots=True)
class BreakEvenRange:
    """The lowest and the highest rate at which speculation may break even; above 1: at none."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assumed:
    """What no configuration says.

    Computing ``balance`` tokens takes as long as reading the weights at 16 bits. ``attention``: the
    context is read once per request or once per token of it, or does not matter. A pass of the
    draft takes ``pass_seconds`` beside its layers, and a step that speculates takes
    ``step_seconds`` beside its passes.

    If ``is_dear``, computing, at 16 bits, comes on top of reading; otherwise the shorter of the two
    is hidden. The target's weights have the fewest bytes and the draft's the most; otherwise the
    other way round. Each token chooses its experts independently; otherwise a request's tokens
    choose the same. Layers that do not fill a GPU take equally long whatever their size, so a pass
    of the draft takes as long as its size or its number of layers suggests: the longer of the two;
    otherwise the shorter.
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
    """L*: how long a step that speculates takes, in plain steps."""
    verified = 1 + load.drafted
    precision = target.precisions[0 if assumed.is_dear else 1]
    plain = _pass(target, precision, load, 1.0, assumed)
    length = _pass(target, precision, load, verified, assumed) / plain

    # Beside its layers, a pass of the draft takes at most as long as a plain step.
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
    """How long a pass takes with ``tokens_each`` of each request, in bytes that each GPU reads.

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
