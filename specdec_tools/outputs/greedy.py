"""Greedy outputs of two servers: whether they are the same but for near ties.

Numerics differ between decoding a token and verifying several, and between batch sizes. So where
two tokens are about as likely, the outputs may part, and stay apart from there. A first difference
counts only where the reference preferred its own token by more than that explains, or where there
are more of them than in the control: the reference at another number in flight.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specdec_tools.outputs.numerics import Movement, binomial_tail, movement_of
from specdec_tools.outputs.replies import END, GreedyReply

NEAR_TIE: Final = 0.3
"""Natural logarithm of the ratio of two probabilities up to which numerics explain a difference."""
_CONFIDENCE: Final = 0.95
_PARTS_MORE: Final = 0.005  # the chance to say so of equal servers


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
    """``partings`` are beyond ``near_tie``, ``ties`` within it, and of ``unclear`` it is unknown.

    ``same`` prompts have the same outputs to the end. What follows another prompt's first
    difference is not compared: ``compared`` tokens are, of ``tokens`` that the reference put out.
    """

    prompts: int
    same: int
    near_tie: float
    tokens: int
    compared: int
    partings: tuple[Parting, ...]
    ties: tuple[Parting, ...]
    unclear: tuple[Parting, ...]

    @property
    def has_partings(self) -> bool:
        """Whether a difference is larger than numerics explain."""
        return bool(self.partings)

    @property
    def noticeable(self) -> float | None:
        """The share of tokens from which on a fault would have been noticed, with 95 %.

        None without any token.
        """
        return 1 - (1 - _CONFIDENCE) ** (1 / self.compared) if self.compared else None


@dataclass(frozen=True, slots=True)
class Control:
    """The reference's greedy outputs beside its own at another number in flight."""

    outputs: GreedyComparison
    movement: Movement

    @property
    def is_steady(self) -> bool:
        """Whether nothing but numerics moved it."""
        return not self.outputs.has_partings and self.movement.is_steady


def compare_greedy(
    tested: Sequence[GreedyReply], reference: Sequence[GreedyReply], near_tie: float = NEAR_TIE
) -> GreedyComparison:
    """Compares the outputs for the same prompts in the same order."""
    found = []
    compared = 0
    replies = zip(tested, reference, strict=True)
    for prompt, (reply, reference_reply) in enumerate(replies, start=1):
        parting = _parting(prompt, reply, reference_reply)
        if parting is not None:
            found.append(parting)
        compared += len(reference_reply.tokens) if parting is None else parting.position

    known = [(one, one.gap) for one in found if one.gap is not None]
    large = [one for one, gap in known if gap > near_tie]
    ended = [one for one in found if one.has_ended]
    return GreedyComparison(
        prompts=len(reference),
        same=len(reference) - len(found),
        near_tie=near_tie,
        tokens=sum(len(reply.tokens) for reply in reference),
        compared=compared,
        partings=(*large, *ended),
        ties=tuple(one for one, gap in known if gap <= near_tie),
        unclear=tuple(one for one in found if one.gap is None and not one.has_ended),
    )


def control_of(
    again: Sequence[GreedyReply], reference: Sequence[GreedyReply], near_tie: float = NEAR_TIE
) -> Control:
    """From the reference's outputs at two numbers in flight, both with log-probabilities."""
    gaps: list[tuple[float, float]] = []
    for reply, other in zip(again, reference, strict=True):
        gaps += _gaps(reply, other)
    return Control(compare_greedy(again, reference, near_tie), movement_of(gaps))


def parts_more(tested: GreedyComparison, control: GreedyComparison) -> bool:
    """Whether the tested outputs part at more near ties than the reference's own, by token.

    With equal rates, each of all partings is the tested one's by its share of the tokens.
    """
    partings = len(tested.ties) + len(control.ties)
    tokens = tested.compared + control.compared
    if not partings or not tested.compared or not control.compared:
        return False
    chance = binomial_tail(len(tested.ties), partings, tested.compared / tokens)
    return chance < _PARTS_MORE


def tokens_for(share: float) -> int:
    """How many tokens that are the same rule out a fault in this share of tokens."""
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


def _gaps(again: GreedyReply, reference: GreedyReply) -> Iterator[tuple[float, float]]:
    """The gap between the reference's two likeliest tokens in both runs, up to where they part."""
    for place, (likely, other) in enumerate(zip(reference.likely, again.likely, strict=False)):
        if len(likely) > 1:
            first, second = sorted(likely, key=likely.__getitem__, reverse=True)[:2]
            if first in other and second in other:
                yield likely[first] - likely[second], other[first] - other[second]
        if reference.tokens[place : place + 1] != again.tokens[place : place + 1]:
            return
