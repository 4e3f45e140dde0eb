"""How loaded one engine was over the last hour, as polls saw it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.analysis.distributions import quantile
from sidecar.analysis.windows.growth import HOUR
from sidecar.analysis.windows.recent import Recent, relative_bin
from sidecar.engine.names import Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledLoad:
    """An engine's load over the last hour.

    ``busy_polls`` are those at which requests ran or waited, and the rest is of these alone.
    ``running`` is the mean number of requests running, ``most`` the highest, ``queued`` the share
    of the polls at which requests waited for capacity, 0 to 1. ``kv_cache_high`` is the usage that
    95 % of the polls were below. None: vLLM does not show it.
    """

    busy_polls: int = 0
    running: float | None = None
    most: float | None = None
    queued: float | None = None
    kv_cache_high: float | None = None


class PolledLoadWindow:
    """Takes one poll after another; bounded whatever vLLM shows."""

    def __init__(self) -> None:
        self._running = Recent(HOUR, relative_bin)  # all of busy polls
        self._queued = Recent(HOUR, relative_bin)
        self._usage = Recent(HOUR, relative_bin)

    def observe(self, at: float, gauges: Mapping[Gauge, float]) -> None:
        """Adds a poll at ``at``, Unix seconds."""
        running = gauges.get(Gauge.REQUESTS_RUNNING)
        in_line = gauges.get(Gauge.REQUESTS_WAITING, 0.0)
        if running is not None and running + in_line > 0:
            self._running.add(at, [running])
            self._queued.add(at, [1.0 if waiting_for_capacity(gauges) > 0 else 0.0])

            usage = gauges.get(Gauge.KV_CACHE_USAGE)
            if usage is not None:
                self._usage.add(at, [usage])

        for recent in (self._running, self._queued, self._usage):
            recent.drop(at)

    @property
    def load(self) -> PolledLoad:
        """As of the last poll."""
        running = self._running.ordered()
        return PolledLoad(
            busy_polls=len(running),
            running=running.mean,
            most=running[len(running) - 1] if len(running) else None,
            queued=self._queued.ordered().mean,
            kv_cache_high=quantile(self._usage.ordered(), 0.95),
        )


def waiting_for_capacity(gauges: Mapping[Gauge, float]) -> float:
    """Requests that wait for capacity.

    vLLM before 0.20 does not say what they wait for, so all that wait.
    """
    return gauges.get(Gauge.WAITING_FOR_CAPACITY, gauges.get(Gauge.REQUESTS_WAITING, 0.0))
