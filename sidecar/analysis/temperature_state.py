"""The finished requests at one temperature: distributions since the start, and recent values."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sidecar.analysis.distributions import ACCEPTANCE_EDGES, Histogram
from sidecar.analysis.windows.recent import Recent, acceptance_bin, relative_bin
from sidecar.requests.keys import ENDINGS, Ending
from sidecar.requests.messages import FinishedRequest
from sidecar.requests.tally import Outcome

# few: each edge costs a series per temperature
LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
DURATION_EDGES: Final = (2.5, 10.0, 60.0, 300.0)


MOST_NOISE: Final = 100
"""Draft tokens below which a request's acceptance rate is mostly chance: in no quantile."""


class RequestNumbers(NamedTuple):
    """One finished request's numbers; None if it has none, or if a time would be negative.

    ``steady`` is the acceptance rate of a request with at least ``MOST_NOISE`` draft tokens.
    """

    acceptance: float | None
    steady: float | None
    length: float | None
    ttft: float | None
    tpot: float | None
    duration: float | None


def request_numbers(request: FinishedRequest) -> RequestNumbers:
    """The numbers of a request.

    A failed one has no times; one whose client left has the times until then.
    """
    arrival = request.arrival
    first = request.first_token
    last = request.last_token
    has_failed = request.outcome is Outcome.ERROR
    decoded = request.decoded_tokens
    decoding = None if has_failed or decoded < 1 else _between(first, last)

    acceptance = request.accepted_tokens / request.draft_tokens if request.draft_tokens else None
    return RequestNumbers(
        acceptance=acceptance,
        steady=acceptance if request.draft_tokens >= MOST_NOISE else None,
        length=1 + request.accepted_tokens / request.drafts if request.drafts else None,
        ttft=None if has_failed else _between(arrival, first),
        tpot=None if decoding is None else decoding / decoded,
        duration=None if has_failed else _between(arrival, last),
    )


def _between(start: float | None, end: float | None) -> float | None:
    if start is None or end is None or end < start:
        return None
    return end - start


class TemperatureState:
    """One temperature; bounded whatever the traffic."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.acceptances = Histogram(ACCEPTANCE_EDGES)
        self.lengths = Histogram(LENGTH_EDGES)
        self.ttft = Histogram(TTFT_EDGES)
        self.tpot = Histogram(TPOT_EDGES)
        self.durations = Histogram(DURATION_EDGES)
        self.endings: dict[Ending, int] = dict.fromkeys(ENDINGS, 0)
        self.recent_acceptances = Recent(window, acceptance_bin)
        self.recent_steady = Recent(window, acceptance_bin)
        self.recent_ttft = Recent(window, relative_bin)
        self.recent_tpot = Recent(window, relative_bin)

    def go_on_from(self, before: "TemperatureState") -> None:
        """Takes over what is exported as a counter, but not what is recent."""
        self.acceptances = before.acceptances
        self.lengths = before.lengths
        self.ttft = before.ttft
        self.tpot = before.tpot
        self.durations = before.durations
        self.endings = before.endings

    def drop(self, at: float) -> None:
        """Forgets what has left the window that ends at ``at``."""
        for recent in (
            self.recent_acceptances,
            self.recent_steady,
            self.recent_ttft,
            self.recent_tpot,
        ):
            recent.drop(at)

    def count_endings(self, requests: Iterable[FinishedRequest]) -> None:
        """Counts finished requests by how their output ends, where the plug-in tells."""
        for request in requests:
            if request.ending is not None:
                self.endings[request.ending] += 1

    def observe(self, at: float, numbers: Sequence[RequestNumbers], *, are_recent: bool) -> None:
        """Adds requests that finished before ``at``, to the windows only if they ``are_recent``."""
        acceptances = [one.acceptance for one in numbers if one.acceptance is not None]
        steady = [one.steady for one in numbers if one.steady is not None]
        lengths = [one.length for one in numbers if one.length is not None]
        ttft = [one.ttft for one in numbers if one.ttft is not None]
        tpot = [one.tpot for one in numbers if one.tpot is not None]
        durations = [one.duration for one in numbers if one.duration is not None]
        self.acceptances.observe(*acceptances)
        self.lengths.observe(*lengths)
        self.ttft.observe(*ttft)
        self.tpot.observe(*tpot)
        self.durations.observe(*durations)
        if not are_recent:
            return

        self.recent_acceptances.add(at, acceptances)
        self.recent_steady.add(at, steady)
        self.recent_ttft.add(at, ttft)
        self.recent_tpot.add(at, tpot)
