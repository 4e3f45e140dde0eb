"""Which replies are alike, so that they count once: by what the engine tells of them anyway."""

from collections.abc import Hashable
from typing import Final

from sidecar.requests.messages import FinishedRequest

_MOST: Final = 10_000  # kinds that are remembered; what is beyond is not counted


class ReplyKinds:
    """The kinds of replies of a window; bounded whatever the traffic.

    Alike are replies at one temperature that end in the same way and have equal numbers of prompt
    and output tokens, and the same sampling. A kind counts once in any window, also if it comes all
    the time. More than a window's most are left out by time alone, so that no ending is preferred.
    """

    def __init__(self, window: float) -> None:
        """``window`` is in seconds."""
        self._window = window
        self._counted: dict[Hashable, float] = {}  # when each was counted, the oldest first

    def is_first(self, at: float, temperature: str, request: FinishedRequest) -> bool:
        """Whether a reply that finished by ``at`` counts: the first of its kind in the window."""
        kind = (
            temperature,
            request.ending,
            request.prompt_tokens,
            request.output_tokens,
            request.sampling,
        )
        before = self._counted.get(kind)
        if before is not None and before <= at < before + self._window:
            return False
        if before is None and len(self._counted) >= _MOST:
            return False

        self._counted.pop(kind, None)
        self._counted[kind] = at
        return True

    def drop(self, at: float) -> None:
        """Forgets what has left the window that ends at ``at``."""
        while self._counted:
            kind, counted = next(iter(self._counted.items()))
            if at - self._window < counted <= at:
                return
            del self._counted[kind]
