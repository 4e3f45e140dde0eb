"""Whether the plug-in counted what vLLM counted: its draft tokens / vLLM's, both since the engine started."""

from collections import deque
from typing import Final

_SILENCE: Final = 30.0  # seconds for which vLLM may count on while the plug-in, with one tick a second, reports nothing


class Coverage:
    """One engine's, from the first poll on at which both numbers are known.

    They are not of the same moment: vLLM's counter lay between those of the polls before and after the plug-in's
    report, but for what was in flight, and that is at most what the last two reports added. What lies between these
    bounds is equal. While nothing is reported, all that vLLM counts is held against the plug-in.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None  # None while nothing can be compared
        self._reported: deque[float] = deque(maxlen=3)  # the plug-in's last totals, each more than the one before
        self._counted = 0.0  # by vLLM, at the last poll
        self._least = 0.0  # the same at the last poll before the last report
        self._silent_since: float | None = None  # the first poll at which vLLM had counted more than the last report

    def compare(self, at: float, counted: float, reported: float) -> None:
        """Takes in the two totals at a good poll."""
        before, self._counted = self._counted, counted
        if not self._reported or reported < self._reported[-1]:  # another plug-in's, which may be of another moment
            self._reported.clear()
            self._reported.append(reported)
            self.ratio = self._silent_since = None
            return
        if is_news := reported > self._reported[-1]:
            self._reported.append(reported)
            self._least, self._silent_since = before, None
        in_flight = reported - self._reported[0]
        if not is_news and self._silent_since is None and counted > reported + in_flight:
            self._silent_since = at
        if self._silent_since is None:
            least = self._least
        elif at - self._silent_since > _SILENCE:
            least = counted
        else:
            return  # it may still report
        equal = min(max(reported, least - in_flight), counted + in_flight)
        self.ratio = reported / equal if equal > 0 else None

    def holds(self, lowest: float) -> bool:
        """Whether the ratio is as close to 1 as ``lowest`` is; also while nothing can be compared."""
        return self.ratio is None or lowest <= self.ratio <= 2 - lowest
