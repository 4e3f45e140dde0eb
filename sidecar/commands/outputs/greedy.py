"""Greedy outputs of two servers: whether they are the same but for near ties.

Numerics differ between decoding a token and verifying several, and between batch sizes. So where
two tokens are about as likely, the outputs may part, and stay apart from there. A first difference
counts only where the reference preferred its own token by more than that explains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.commands.outputs.replies import END, GreedyReply

NEAR_TIE: Final = 0.3
"""Natural logarithm of the ratio of two probabilities up to which numerics explain a difference."""
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference of a prompt's outputs; both numbers count from 1.

    ``gap`` is how much the reference preferred its own token, in nat. None if that is unknown: one
    output had ended (``has_ended``), or the reference did not choose its likeliest token, since a
    grammar forbade that.
    """

    prompt: int
    position: int
    gap: float | None
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyComparison:
    """``partings`` are beyond ``limit``, ``ties`` within it, and of ``unclear`` it is unknown.

    ``same`` prompts have the same outputs to the end. What follows another prompt's first
    difference is not compared, so only these rule a fault out: ``noticeable`` is the share of
    prompts from which on one would have been noticed, with a probability of 95 %; None without any.
    """

    prompts: int
    same: int
    limit: float
    partings: tuple[Parting, ...]
    ties: tuple[Parting, ...]
    unclear: tuple[Parting, ...]
    noticeable: float | None

    @property
    def differs(self) -> bool:
        """Whether a difference is larger than numerics explain."""
        return bool(self.partings)


def compare_greedy(
    tested: Sequence[GreedyReply], reference: Sequence[GreedyReply], limit: float = NEAR_TIE
) -> GreedyComparison:
    """Compares the outputs for the same prompts in the same order."""
    found = []
    replies = zip(tested, reference, strict=True)
    for prompt, (reply, reference_reply) in enumerate(replies, start=1):
        parting = _parting(prompt, reply, reference_reply)
        if parting is not None:
            found.append(parting)

    known = [(one, one.gap) for one in found if one.gap is not None]
    large = [one for one, gap in known if gap > limit]
    ended = [one for one in found if one.has_ended]
    same = len(reference) - len(found)
    return GreedyComparison(
        prompts=len(reference),
        same=same,
        limit=limit,
        partings=(*large, *ended),
        ties=tuple(one for one, gap in known if gap <= limit),
        unclear=tuple(one for one in found if one.gap is None and not one.has_ended),
        noticeable=1 - (1 - _CONFIDENCE) ** (1 / same) if same else None,
    )


def prompts_for(share: float) -> int:
    """How many prompts whose outputs are the same rule out a fault in this share of prompts."""
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(1 - share))


def _first_difference(tested: Sequence[int], reference: Sequence[int]) -> int | None:
    """The first place at which two outputs differ; None if one is the beginning of the other."""
    for place, (own, other) in enumerate(zip(tested, reference, strict=False)):
        if own != other:
            return place
    return None


def _parting(prompt: int, tested: GreedyReply, reference: GreedyReply) -> Parting | None:
    place = _first_difference(tested.tokens, reference.tokens)
    if place is None:
        return None
    if END in {tested.tokens[place], reference.tokens[place]}:
        return Parting(prompt, place + 1, None, has_ended=True)

    likely = reference.likely[place] if place < len(reference.likely) else {}
    own = likely.get(reference.tokens[place])
    if own is None or own < max(likely.values()):
        return Parting(prompt, place + 1, None)

    # A token that is not among the likely ones is less likely than all of them.
    other = likely.get(tested.tokens[place], min(likely.values()))
    return Parting(prompt, place + 1, own - other)
