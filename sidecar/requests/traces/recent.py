"""A bounded memory of the spans already taken, for senders that send again what they believe lost."""

from collections import deque


class RecentSpans:
    """The ids of the last ``limit`` spans; the oldest are forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[str] = deque()
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._order)

    def is_new(self, span: str) -> bool:
        """Whether ``span`` is not among them; from now on it is."""
        if span in self._known:
            return False
        self._known.add(span)
        self._order.append(span)
        if len(self._order) > self._limit:
            self._known.discard(self._order.popleft())
        return True
