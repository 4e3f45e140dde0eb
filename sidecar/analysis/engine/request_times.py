"""How long an engine's finished requests took, each by its own time, over a sliding window.

These are vLLM's own definitions (``vllm/v1/metrics/stats.py``): its histograms have the same
requests, in wide buckets. The plug-in does not tell how long a request was queued, nor the time of
each output (inter-token latency).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.analysis.engine.latency import Latency, contradicts, own_latency
from sidecar.analysis.windows.growth import GrowthWindow, subtract
from sidecar.analysis.windows.recent import Ordered, Recent
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.requests.messages import FinishedRequest
from sidecar.requests.tally import Outcome

PHASES: Final = (Phase.TTFT, Phase.TPOT, Phase.E2E)
_BIN: Final = 1.005  # the bin of a time ends at its start times this
_LOG_BIN: Final = math.log(_BIN)
_SHORTEST: Final = 1e-5  # seconds; shorter ones, such as 0, share a bin with it
_PARTS: Final = 240  # of twice the window, so that each slice is one of the growth's
_MISSING: Final = 0.02  # share of vLLM's requests that may be missing, or one
_UNTOLD: Final = 0.1  # share that may be missing with those that are not told yet

_ENDED, _ABORTED, _OWN = "ended", "aborted", "own"
_KINDS: Final = (_ENDED, _ABORTED, _OWN)


class RequestTimes:
    """One engine's; its bins bound the memory, whatever the rate.

    Of requests that were aborted the engine cannot tell whether their client left, so that vLLM
    does not count them, or a stop string ended them, so that it does: the number that vLLM has
    counted tells it. Those of this product's own commands are in vLLM's histograms, too, but in no
    latency.
    """

    def __init__(self, window: float, *, takes_own: bool = False) -> None:
        """``window`` is in seconds. ``takes_own``: its own commands' requests are like others."""
        self._takes_own = takes_own
        self._times = {
            (phase, kind): Recent(2 * window, time_bin, _PARTS)
            for phase in PHASES
            for kind in _KINDS
        }
        self._window = GrowthWindow[tuple[float, ...]](window, subtract)  # as the histograms'

    def add(self, at: float, requests: Iterable[FinishedRequest]) -> None:
        """Adds those that were told by ``at``, a good poll's time."""
        times: dict[tuple[Phase, str], list[float]] = {}
        for request in requests:
            kind = self._kind(request)
            for phase, seconds in _times(request):
                times.setdefault((phase, kind), []).append(seconds)

        kept = self._window.kept_last
        for key, values in times.items():
            self._times[key].add(at if kept is None else kept, values)

    def mark(self, at: float) -> None:
        """What was added until now is in the window that ends at ``at``, a good poll's time."""
        self._window.append(at, ())
        start = self._window.begins
        for times in self._times.values():
            times.forget(math.inf if start is None or start >= at else start)

    def latency(self, phase: Phase, counted: HistogramReading, late: float) -> Latency | None:
        """A phase's latency, where hardly one of the requests that vLLM has ``counted`` is unknown.

        ``counted`` is over the same window; of it, ``late`` are from since the last poll, and may
        not be told yet. None if it is not known.
        """
        if phase not in PHASES or counted.count <= 0:
            return None

        times = self._like(phase, counted.count, late)
        if times is None or not len(times):
            return None
        own = self._times[phase, _OWN].ordered()
        everyone = times.merged(own)
        missing = math.ceil(abs(counted.count - len(everyone)))
        if missing > _UNTOLD * len(times) or contradicts(everyone, counted, _MISSING):
            return None
        return own_latency(times, counted, missing, len(own) / counted.count)

    def _kind(self, request: FinishedRequest) -> str:
        if request.is_own and not self._takes_own:
            return _OWN
        return _ABORTED if request.outcome is Outcome.ABORTED else _ENDED

    def _like(self, phase: Phase, count: float, late: float) -> Ordered | None:
        """The times of the requests that vLLM counts, without own ones, if so many can be."""
        ended = self._times[phase, _ENDED].ordered()
        whole = ended.merged(self._times[phase, _ABORTED].ordered())
        own = len(self._times[phase, _OWN].ordered())
        nearest = min(ended, whole, key=lambda times: abs(len(times) + own - count))
        off = max(_MISSING * count, 1.0)  # one may be told on the other side of the window's start
        return nearest if count - late - off <= len(nearest) + own <= count + off else None


def time_bin(seconds: float) -> int:
    """The bin of a time: half a percent wide."""
    return math.floor(math.log(max(seconds, _SHORTEST)) / _LOG_BIN)


def _times(request: FinishedRequest) -> Iterator[tuple[Phase, float]]:
    """A request's times; those that the plug-in does not know are missing.

    As in vLLM, one of a single token takes 0 per token.
    """
    arrival, first, last = request.arrival, request.first_token, request.last_token
    if first is not None and last is not None and request.output_tokens and last >= first:
        yield Phase.TPOT, (last - first) / max(request.decoded_tokens, 1)
    if arrival is not None and first is not None and first >= arrival:
        yield Phase.TTFT, first - arrival
    if arrival is not None and last is not None and last >= arrival:
        yield Phase.E2E, last - arrival
