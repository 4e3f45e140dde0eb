"""Whether the plug-in counted what vLLM counted: its draft tokens / vLLM's, both since the engine started."""

from typing import Final

_SILENCE: Final = 30.0  # seconds that vLLM may keep counting while the plug-in, with one tick a second, reports nothing


class Coverage:
    """The coverage of one engine, from the first poll at which both totals are known.

    They are not from the same moment: at the plug-in's tick, vLLM's counter was between its values at the polls before
    and after, give or take what was in flight, which is one tick's traffic. A total within these bounds counts as
    equal. After a long silence of the plug-in, vLLM's latest count is the lower bound, so the ratio falls.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None  # None while there is nothing to compare
        self._reported: float | None = None  # by the plug-in, as of the last poll
        self._counted = 0.0  # by vLLM, at the last poll
        self._least = 0.0  # by vLLM, at the last poll before the last tick
        self._silent_since: float | None = None  # the first poll at which vLLM had counted more than that tick reported

    def compare(self, at: float, counted: float, reported: float, in_flight: float) -> None:
        """Takes in the two totals at a good poll; ``in_flight`` is what the last tick added."""
        before, self._counted = self._counted, counted
        known, self._reported = self._reported, reported
        if known is None or reported < known:  # the first total, or another plug-in's; it may be from another moment
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
        """Whether the ratio is at least as close to 1 as ``lowest``; True while there is nothing to compare."""
        return self.ratio is None or lowest <= self.ratio <= 2 - lowest
