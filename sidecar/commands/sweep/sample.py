"""One completed request of a level; numbers only, never its text."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from sidecar.analysis.acceptance import Acceptance


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


def acceptance(samples: Iterable[Sample]) -> Acceptance | None:
    """The sum of the requests' own numbers; None if no reply has any."""
    exact = [one for one in samples if one.drafts is not None]
    if not exact:
        return None
    return Acceptance(
        requests=len(exact),
        drafts=sum(one.drafts or 0 for one in exact),
        draft_tokens=sum(one.draft_tokens for one in exact),
        accepted_tokens=sum(one.accepted_tokens for one in exact),
        accepted_per_position=tuple(map(sum, zip_longest(*(one.positions for one in exact), fillvalue=0))),
    )
