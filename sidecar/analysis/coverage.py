"""Whether the plug-in counted what vLLM counted: its draft tokens / vLLM's, both since the engine started."""

from typing import Final

_SILENCE: Final = 30.0  # seconds for which vLLM may count on while the plug-in, with one tick a second, reports nothing


class Coverage:
    """One engine's, from the first poll on at which both numbers are known.

    They are not of the same moment: vLLM's counter lay between those of the polls before and after the plug-in's tick,
    but for what was in flight, which is one tick's traffic. What lies between these bounds is equal. While no tick
    comes, all that vLLM counts is held against the plug-in.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None  # None while nothing can be compared
        self._reported: float | None = None  # by the plug-in, as of the last poll
        self._counted = 0.0  # by vLLM, at the last poll
        self._least = 0.0  # the same at the last poll before the last tick
        self._silent_since: float | None = None  # the first poll at which vLLM had counted more than that tick

    def compare(self, at: float, counted: float, reported: float, in_flight: float) -> None:
        """Takes in the two totals at a good poll; ``in_flight`` is what the last tick added."""
        before, self._counted = self._counted, counted
        known, self._reported = self._reported, reported
        if known is None or reported < known:  # another plug-in's, which may be of another moment
            self.ratio = self._silent_since = None
            return
        if reported > known:
            self._least, self._silent_since = before, None
        elif self._silent_since is None and counted > reported + in_flight:
            self._silent_since = at
        if self._silent_since is None:
            least = self._least
        elif at - self._silent_since > _SILENCE:
            least = counted
        else:
            return  # a tick may still come
        equal = min(max(reported, least - in_flight), counted + in_flight)
        self.ratio = reported / equal if equal > 0 else None

    def holds(self, lowest: float) -> bool:
        """Whether the ratio is as close to 1 as ``lowest`` is; also while nothing can be compared."""
        return self.ratio is None or lowest <= self.ratio <= 2 - lowest
