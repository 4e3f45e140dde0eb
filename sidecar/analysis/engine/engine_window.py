"""How much one engine's counters have grown over a sliding window."""

import math
from collections.abc import Mapping
from typing import Final

from sidecar.analysis.windows.counters import CounterWindow
from sidecar.engine.names import SPECULATION, Counter
from sidecar.engine.snapshot import EngineSnapshot

# What a reading has, in this order; the accepted tokens by position follow.
_COUNTERS: Final = (
    *SPECULATION,
    Counter.FIRST_TOKENS,
    Counter.PROMPT_TOKENS,
    Counter.GENERATION_TOKENS,
    Counter.PREFIX_CACHE_QUERIES,
    Counter.PREFIX_CACHE_HITS,
    Counter.PREEMPTIONS,
)


class EngineWindow:
    """Bounded history of an engine's counters, which start again at 0 when it does."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        # A window keeps sixty readings, so one is a tuple of numbers.
        self._readings = CounterWindow(seconds)
        self._grown: tuple[float, ...] = ()  # a reading's growth over the window
        # that of the counters, without those that vLLM does not export
        self.counters: Mapping[Counter, float] = {}

    def add(
        self, at: float, shown: EngineSnapshot, held: EngineSnapshot, *, has_restarted: bool
    ) -> None:
        """Adds a poll's reading: ``held``'s counters, as far as the page, ``shown``, has them."""
        counters = [
            held.counters[counter] if counter in shown.counters else math.nan
            for counter in _COUNTERS
        ]
        positions = held.accepted_per_position
        if not shown.accepted_per_position:
            positions = (math.nan,) * len(positions)
        self._readings.observe(at, (*counters, *positions), has_restarted=has_restarted)
        self._grown = self._readings.growth or ()
        grown = zip(_COUNTERS, self._grown, strict=False)
        self.counters = {counter: one for counter, one in grown if not math.isnan(one)}

    @property
    def seconds(self) -> float:
        """The time that the growth covers: shorter than the window while there is less history."""
        return self._readings.seconds

    def accepted_per_position(self, positions: int) -> tuple[float, ...]:
        """The growth of the accepted tokens at the first ``positions`` positions.

        Empty if vLLM does not export it. Before a restart there may have been more positions.
        """
        first = len(_COUNTERS)
        grown = self._grown[first : first + positions]
        return () if any(map(math.isnan, grown)) else grown
