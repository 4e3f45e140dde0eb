"""One completed request of a level; numbers only, never its text."""

from typing import NamedTuple


class Sample(NamedTuple):
    """Seconds, and vLLM's own numbers if the reply has them; else ``drafts`` is None.

    ``ttft`` is the time to the first token, ``tpot`` that for each output token after it; None if unknown.
    ``histogram[j]``: verification steps that accepted j tokens. Saved as an array, in the order of the fields.
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
        """The steps that accepted the draft token at each position."""
        return [sum(self.histogram[place:]) for place in range(1, len(self.histogram))]
