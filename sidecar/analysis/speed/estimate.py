"""Which acceptance rate breaks even, by the sizes of the models, while no speedup is known.

The plug-in tells the models' dimensions, how vLLM drafts, and what its steps are like;
``sizes/break_even.py`` has the arithmetic. It is no measurement, and decides nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from sidecar.analysis.evidence import is_ruled
from sidecar.analysis.speed.steps import Steps
from sidecar.engine.methods import HEADS, is_mtp
from sidecar.requests.messages import Configuration, Speculation
from sidecar.sizes.break_even import BreakEvenRange, Load, Model, break_even
from sidecar.sizes.fields import ModelFields, fields_of
from sidecar.sizes.kinds import KINDS, attention_kind
from sidecar.sizes.layers import full_layers
from sidecar.sizes.parameters import Parameters, PassSize
from sidecar.sizes.precision import BYTES, UNQUANTIZED

# The precision that a vLLM quantization stands for; others have 4 or 8 bits.
_PRECISIONS: Final[Mapping[str | None, tuple[str, str]]] = {
    None: (UNQUANTIZED, UNQUANTIZED),
    **dict.fromkeys(("fp8", "fbgemm_fp8", "ptpc_fp8", "mxfp8", "modelopt"), ("fp8", "fp8")),
    **dict.fromkeys(("awq", "awq_marlin"), ("int4", "int4")),
    **dict.fromkeys(("mxfp4", "modelopt_fp4", "petit_nvfp4"), ("fp4", "fp4")),
}
_ANY_QUANTIZATION: Final = ("int4", "int8")
_WIDEST: Final = 0.4  # a wider range holds most rates that there are, so it tells nothing


class Unsized(StrEnum):
    """Why the sizes do not tell."""

    SIZES = "sizes"  # vLLM does not tell the dimensions, or they are of no decoder
    LAYERS = "layers"  # some of the target's layers keep a state, whose size is not told
    EXPERTS = "experts"  # how many experts a token passes is not told
    METHOD = "method"  # a method that is not known here
    RATE = "rate"  # the acceptance rate does not tell whether it pays, see ``Evidence.is_ruled``
    WIDE = "wide"  # the range is too wide to tell anything at this load
    CPU = "cpu"  # on one, computing takes what no size tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Acceptance rates between which this load breaks even, by the sizes of the models.

    If both are above 1, none does. Both are None if ``unsized`` says why.
    """

    low: float | None = None
    high: float | None = None
    unsized: Unsized | None = None


def estimate(
    speculation: Speculation | None, configuration: Configuration, steps: Steps | None
) -> Estimate | None:
    """The estimate for a vLLM that speculates so, in steps like these; None if it drafts none.

    ``speculation`` is what the plug-in says.
    """
    if speculation is None or steps is None or not steps.draft_tokens:
        return None

    found = range_by_sizes(speculation, configuration, steps)
    if isinstance(found, Unsized):
        return Estimate(unsized=found)
    if configuration.device == "cpu":
        return Estimate(unsized=Unsized.CPU)
    return Estimate(unsized=Unsized.WIDE) if _is_wide(found) else Estimate(**asdict(found))


def range_by_sizes(
    speculation: Speculation, configuration: Configuration, steps: Steps
) -> BreakEvenRange | Unsized:
    """The range, however wide, of steps that draft something; or why there is none."""
    if not is_ruled(speculation):
        return Unsized.RATE
    pair = _pair(speculation, configuration)
    if isinstance(pair, Unsized):
        return pair

    load = Load(
        requests=steps.running,
        drafted=steps.draft_tokens / steps.decode_steps,
        context=steps.context or 0.0,
        seconds=steps.engine_seconds / steps.engine_steps,
    )
    return break_even(*pair, load, is_cpu=configuration.device == "cpu")


def _is_wide(found: BreakEvenRange) -> bool:
    """Whether it tells nothing: it holds many rates, or reaches from one to where none is."""
    is_none = found.low > 1  # however far above
    return not is_none and (found.high > 1 or found.high - found.low > _WIDEST)


@lru_cache(maxsize=16)  # a model's engines are configured alike, and each poll asks again
def _pair(speculation: Speculation, configuration: Configuration) -> tuple[Model, Model] | Unsized:
    """The target and what drafts for it."""
    fields = _fields(configuration.sizes)
    if configuration.is_hybrid:
        return Unsized.LAYERS
    if fields is None:
        return Unsized.SIZES

    target = Parameters(fields, full_layers(fields))
    size = target.pass_size()
    if size is None or (configuration.is_moe and not fields.experts):
        return Unsized.EXPERTS

    gpus = configuration.tensor_parallel_size or 1
    precisions = _bytes(configuration.quantization)
    whole = _model(fields, size, fields.layers, precisions, gpus)
    draft = _draft(speculation, target, whole)
    return draft if isinstance(draft, Unsized) else (whole, draft)


def _draft(speculation: Speculation, target: Parameters, whole: Model) -> Model | Unsized:
    """What drafts: a layer of the target, a head, or a model."""
    method = speculation.method
    if is_mtp(method):
        size = target.mtp_pass_size()
        # A quantization often leaves these layers out.
        precisions = (whole.precisions[0], BYTES[UNQUANTIZED])
        return _known(target.fields, size, 1, precisions, whole.gpus)

    fields = _fields(speculation.draft_sizes)
    if fields is None:
        return Unsized.SIZES

    draft = Parameters(fields, full_layers(fields))
    if method in HEADS:
        size = draft.head_pass_size(method)
    elif method == "draft_model":
        size = draft.pass_size()
    else:
        return Unsized.METHOD
    gpus = speculation.draft_tensor_parallel_size or whole.gpus
    return _known(fields, size, fields.layers, _bytes(speculation.draft_quantization), gpus)


def _known(
    fields: ModelFields,
    size: PassSize | None,
    layers: int,
    precisions: tuple[float, float],
    gpus: int,
) -> Model | Unsized:
    if size is None:
        return Unsized.EXPERTS
    return _model(fields, size, layers, precisions, gpus)


def _model(
    fields: ModelFields, size: PassSize, layers: int, precisions: tuple[float, float], gpus: int
) -> Model:
    attention, *_ = KINDS[attention_kind(fields)].cached(fields)
    cached = layers * attention.values
    return Model(size=size, precisions=precisions, layers=layers, cached=cached, gpus=gpus)


def _fields(sizes: Mapping[str, int]) -> ModelFields | None:
    """None if they do not describe a decoder."""
    try:
        return fields_of(sizes)
    except ValidationError:
        return None


def _bytes(quantization: str | None) -> tuple[float, float]:
    """The fewest and the most bytes of a weight."""
    low, high = _PRECISIONS.get(quantization, _ANY_QUANTIZATION)
    return BYTES[low], BYTES[high]
