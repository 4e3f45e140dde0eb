"""What was compared of two servers' outputs, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from specdec_tools.outputs.greedy import Control, GreedyComparison, parts_more
from specdec_tools.outputs.sampled import SampledComparison

TOKEN_SHARE: Final = 0.01
"""The share of tokens with a fault that greedy outputs must show, unless told otherwise."""

FidelityVerdict = Literal["no_difference_found", "different", "undecided", "reference_not_steady"]


@dataclass(frozen=True, slots=True)
class Required:
    """What must have been noticed if there were such a fault; both are shares of 1.

    ``difference`` is the change of a token's probability, ``token_share`` the share of the greedy
    tokens that have a fault.
    """

    difference: float
    token_share: float = TOKEN_SHARE


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was asked: its address without credentials, and the model's name."""

    name: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What both servers were asked.

    ``contexts`` are the tokens of the shortest and the longest prompt, None if the server does not
    say; ``max_tokens`` those of a greedy output, ``sampled_tokens`` those of a sampled one.
    """

    prompts: int
    contexts: tuple[int, int] | None
    max_tokens: int
    sampled_tokens: int
    temperature: float
    extra_body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What was compared; None for what was not.

    ``control`` compares the reference's greedy outputs with its own for another number of requests
    in flight. ``is_complete``: all outputs that were asked for came in time.
    """

    tested: Server
    reference: Server
    asked: Asked
    greedy: GreedyComparison | None
    control: Control | None
    sampled: SampledComparison | None
    is_complete: bool = True

    def verdict(self, required: Required) -> FidelityVerdict:
        """Whether they differ, or what is ``required`` would have been noticed.

        A reference that moves by more than numerics do says nothing, whatever was found beside it.
        """
        if not self.is_steady:
            return "reference_not_steady"
        if self.sampled is not None and self.sampled.differs:
            return "different"
        if self.greedy is not None and (self.greedy.has_partings or self.parts_more):
            return "different"

        is_known = (
            self.is_complete
            and (self.greedy is None or greedy_suffice(self.greedy, required.token_share))
            and (self.sampled is None or samples_suffice(self.sampled, required.difference))
        )
        return "no_difference_found" if is_known else "undecided"

    @property
    def is_steady(self) -> bool:
        """Whether nothing but numerics moves the reference, as far as is known."""
        numerics = None if self.sampled is None else self.sampled.numerics
        return (self.control is None or self.control.is_steady) and (
            numerics is None or numerics.is_steady
        )

    @property
    def parts_more(self) -> bool:
        """Whether greedy outputs part at more near ties than the reference's own."""
        if self.greedy is None or self.control is None:
            return False
        return parts_more(self.greedy, self.control.outputs)


def greedy_suffice(greedy: GreedyComparison, share: float) -> bool:
    """Whether greedy outputs would have shown a fault in this share of tokens."""
    if greedy.unclear or greedy.noticeable is None:
        return False
    return greedy.noticeable <= share


def samples_suffice(sampled: SampledComparison, difference: float) -> bool:
    """Whether samples would have shown such a change at whichever drafted position."""
    noticeable = sampled.noticeable_anywhere
    return noticeable is not None and noticeable <= difference
