"""Whether the plug-in counted what vLLM counted: its draft tokens / vLLM's, both since the engine started."""

from typing import Final

from sidecar.engine.names import Counter
from sidecar.engine.snapshot import EngineSnapshot

_SILENCE: Final = 30.0  # seconds without a tick despite traffic, with which there is one a second


class Coverage:
    """One engine's; fed with every good poll, and with the plug-in's totals as of the last tick before it.

    These are compared after the plug-in has disconnected too: what vLLM goes on to draft is held against it.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None  # None while nothing can be compared
        self.disabled: str | None = None  # why the plug-in counts no more until vLLM restarts; None if it does
        self.starts: set[str] = set()  # of the plug-in's engines that were compared with this process of vLLM
        self._polls: list[tuple[float, float]] = []  # the last few: Unix seconds, draft tokens of this process
        self._tick_at: float | None = None
        self._before: float | None = None  # vLLM's counter at the last poll before that tick
        self._silent_since: float | None = None  # the first poll at which vLLM had counted more than that tick explains

    def polled(self, at: float, engine: EngineSnapshot) -> None:
        """Takes in vLLM's own counter, which begins at 0 with its process."""
        counted = engine.counters.get(Counter.DRAFT_TOKENS)
        if counted is None or (self._polls and counted < self._polls[-1][1]):
            self._polls, self._before, self.ratio, self.disabled = [], None, None, None
            self.starts = set()
        if self._polls and at < self._polls[-1][0]:  # the clock was set back: these are before any tick to come
            self._polls = [(0.0, earlier) for _, earlier in self._polls]
        if counted is not None:
            self._polls = [*self._polls[-3:], (at, counted)]

    def compare(self, reported: float, tick_growth: float, tick_at: float) -> None:
        """Compares with what the plug-in reported at ``tick_at``, of which ``tick_growth`` since the tick before.

        vLLM's counter lay between those of the polls before and after the tick, but for what was in flight: one
        tick's traffic. What lies between these bounds is equal. While no tick comes, all is held against the plug-in.
        """
        if not self._polls:
            return
        at, latest = self._polls[-1]
        if tick_at != self._tick_at:
            self._tick_at, self._silent_since = tick_at, None
            # Not the last poll, to which a tick from before the clock was set back seems to come.
            self._before = next((counted for at, counted in reversed(self._polls[:-1]) if at <= tick_at), None)
            if self._before is None:
                return  # the next poll tells
        elif self._silent_since is None and latest > reported + tick_growth:
            self._silent_since = at
        is_silent = self._silent_since is not None and at - self._silent_since > _SILENCE
        low = latest if self._before is None or is_silent else min(self._before, latest)
        equal = min(max(reported, low - tick_growth), latest + tick_growth)
        self.ratio = reported / equal if equal > 0 else None

    def holds(self, lowest: float) -> bool:
        """Whether the ratio is as close to 1 as ``lowest`` is; also while nothing can be compared."""
        return self.ratio is None or lowest <= self.ratio <= 2 - lowest
