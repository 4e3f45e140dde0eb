"""What would fit where a deployment does not: one change at a time."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from sidecar.sizes.precision import BYTES
from specdec_tools.planning.memory import Deployment, Room, room
from specdec_tools.planning.serving import Serving
from specdec_tools.planning.shape import ModelShape

MOST_GPUS: Final = 16
"""More GPUs are no alternative."""
_SHORTEST: Final = 1024  # tokens; a shorter context is no alternative
_FEWEST_SEQS: Final = 8
_QUANTIZED: Final = ("int8", "int4")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change with which memory suffices.

    ``option`` is what to give to ``plan`` for it. ``room`` is for requests of ``context`` tokens.
    """

    change: str
    option: str
    context: int
    room: Room


def alternatives(deployment: Deployment, serving: Serving) -> Iterator[Alternative]:
    """The changes of which each alone is enough; those that cost least come first."""
    context = serving.context
    yield from _fewer_logits(deployment, serving)
    yield from _shorter_context(deployment, context)
    yield from _smaller_cache(deployment, context)
    yield from _quantized(deployment, serving)
    yield from _no_draft(deployment, serving)
    yield from islice(_more_gpus(deployment, context), 1)


def _if_it_fits(
    change: str, option: str, deployment: Deployment, context: int
) -> Iterator[Alternative]:
    left = room(deployment, context)
    if left.fits:
        yield Alternative(change, option, context, left)


def _fewer_logits(deployment: Deployment, serving: Serving) -> Iterator[Alternative]:
    """For a draft that samples: fewer requests at once, fewer tokens, or no sampling."""
    if not deployment.draft_logits:
        return

    context = serving.context
    yield from islice(_fewer_requests(deployment, serving), 1)

    if serving.tokens > 1:
        cache = replace(deployment.cache, draft_tokens=1)
        logits = deployment.draft_logits // serving.tokens
        single = replace(deployment, draft_logits=logits, cache=cache)
        yield from _if_it_fits("a single draft token", "--tokens 1", single, context)

    greedy = replace(deployment, draft_logits=0)
    option = "without --sampled-drafts"
    yield from _if_it_fits("a draft that does not sample", option, greedy, context)


def _fewer_requests(deployment: Deployment, serving: Serving) -> Iterator[Alternative]:
    """Half of the requests at once, a quarter, and so on."""
    of_a_request = deployment.draft_logits // serving.max_num_seqs
    requests = serving.max_num_seqs // 2
    while requests >= _FEWEST_SEQS:
        fewer = replace(deployment, draft_logits=requests * of_a_request)
        option = f"--max-num-seqs {requests}"
        yield from _if_it_fits("fewer requests at once", option, fewer, serving.context)
        requests //= 2


def _shorter_context(deployment: Deployment, context: int) -> Iterator[Alternative]:
    """The longest context of which one request fits."""

    def is_too_long(tokens: int) -> bool:
        return not room(deployment, tokens).fits

    lengths = range(_SHORTEST, context, _SHORTEST)
    fitting = bisect_left(lengths, x=True, key=is_too_long)
    if fitting:
        longest = lengths[fitting - 1]
        yield from _if_it_fits("a shorter context", f"--context {longest}", deployment, longest)


def _smaller_cache(deployment: Deployment, context: int) -> Iterator[Alternative]:
    """A KV cache of 8 bits, if it has more."""
    if BYTES[deployment.cache.precision] > BYTES["fp8"]:
        cache = replace(deployment.cache, precision="fp8")
        smaller = replace(deployment, cache=cache)
        yield from _if_it_fits("a quantized KV cache", "--kv-precision fp8", smaller, context)


def _quantized(deployment: Deployment, serving: Serving) -> Iterator[Alternative]:
    """A quantized draft, a quantized target, and both where neither is enough."""
    if deployment.draft is None or serving.method == "mtp":
        yield from islice(_of_parts(["target"], deployment, serving), 1)
        return

    alone: list[Alternative] = []
    for part in ("draft", "target"):
        alone += islice(_of_parts([part], deployment, serving), 1)
    yield from alone or islice(_of_parts(["draft", "target"], deployment, serving), 1)


def _of_parts(
    parts: Sequence[str], deployment: Deployment, serving: Serving
) -> Iterator[Alternative]:
    """These parts at 8 bits and at 4.

    Layers of the target itself that draft are quantized with it.
    """
    is_part_of_target = serving.method == "mtp"
    for precision in _QUANTIZED:
        target = deployment.target
        if "target" in parts:
            target = _at(target, precision)
        draft = deployment.draft
        if draft is not None and ("draft" in parts or is_part_of_target):
            draft = _at(draft, precision)

        quantized = replace(deployment, target=target, draft=draft)
        change = f"a quantized {' and '.join(parts)}"
        option = " ".join(f"--{part}-precision {precision}" for part in parts)
        yield from _if_it_fits(change, option, quantized, serving.context)


def _at(model: ModelShape, precision: str) -> ModelShape:
    """The model at this precision, or as it is if that is no larger."""
    if BYTES[model.precision] <= BYTES[precision]:
        return model
    return replace(model, precision=precision, file_bytes=None)


def _no_draft(deployment: Deployment, serving: Serving) -> Iterator[Alternative]:
    if deployment.draft is None:
        return
    option = f"without {', '.join(serving.draft_arguments)}"
    yield from _if_it_fits("no draft", option, deployment.without_draft(), serving.context)


def _more_gpus(deployment: Deployment, context: int) -> Iterator[Alternative]:
    """Twice as many, four times, and so on, of those over which vLLM can split the models.

    Nothing where vLLM's log names the memory: that of more GPUs is unknown.
    """
    if deployment.available_gib is not None:
        return

    is_split = deployment.draft_parallel == deployment.gpus
    gpus = 2 * deployment.gpus
    while gpus <= MOST_GPUS:
        draft_parallel = gpus if is_split else 1
        more = replace(deployment, gpus=gpus, draft_parallel=draft_parallel)
        option = f"--gpus {gpus}"
        if deployment.draft is not None:
            option += f" --draft-gpus {draft_parallel}"  # another number may have been asked for

        if more.can_be_split:
            yield from _if_it_fits("more GPUs", option, more, context)
        gpus *= 2
