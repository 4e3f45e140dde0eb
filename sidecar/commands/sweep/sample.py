"""One completed request of a level: only its numbers, never its text."""

from typing import NamedTuple


class Sample(NamedTuple):
    """Times in seconds, and vLLM's own numbers; without those in the reply, ``drafts`` is None.

    ``ttft`` is the time to the first token, ``tpot`` the time per output token after it; None if unknown.
    ``histogram[j]`` counts the verification steps that accepted j tokens. Saved as an array in the fields' order.
    """

    temperature: float
    ttft: float | None
    tpot: float | None
    duration: float
    tokens: int | None
    drafts: int | None = None
    draft_tokens: int = 0
    accepted_tokens: int = 0
    histogram: tuple[int, ...] = ()

    @property
    def positions(self) -> list[int]:
        """How many steps accepted the draft token at each position."""
        return [sum(self.histogram[place:]) for place in range(1, len(self.histogram))]
