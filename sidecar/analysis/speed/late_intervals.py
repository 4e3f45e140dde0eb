"""Steps on the page of vLLM's Rust frontend, which counts them late.

It publishes the time between two outputs of a request when the request ends (newer ones also in
between), while tokens, drafts and engine steps are counted at once. So between two polls the number
of intervals may be 0, or that of many polls. What they took on average is right all the same, and
the number of steps follows from what is counted at once. Source: vLLM, rust/src/metrics/src/itl.rs.
"""

from collections.abc import Mapping
from typing import Final

from sidecar.engine.names import Counter

_ENOUGH: Final = 32.0  # intervals of which the mean is taken, at least
_LATE: Final = frozenset({Counter.DECODE_STEPS, Counter.DECODE_SECONDS})


class LateIntervals:
    """Puts the steps that were made between two polls in the place of those published then."""

    def __init__(self) -> None:
        self._step_seconds: float | None = None  # by the intervals published last
        # published since, too few for a mean
        self._seconds = 0.0
        self._steps = 0.0

    def on_time(self, grown: Mapping[Counter, float]) -> dict[Counter, float]:
        """The growth of one engine's counters, poll by poll, with the steps that were made.

        Without steps as long as no interval has been published.
        """
        self._publish(grown)
        others = {name: growth for name, growth in grown.items() if name not in _LATE}
        if self._step_seconds is None or not others.keys() >= _AT_ONCE:
            return others

        # Each step of a request gives a token besides those accepted. Those accepted after a stop
        # are none, so it is at least as many as there were drafts.
        tokens = grown[Counter.GENERATION_TOKENS] - grown[Counter.FIRST_TOKENS]
        steps = tokens - grown.get(Counter.ACCEPTED_TOKENS, 0.0)
        steps = max(steps, min(grown.get(Counter.DRAFTS, 0.0), tokens), 0.0)
        return {
            **others,
            Counter.DECODE_STEPS: steps,
            Counter.DECODE_SECONDS: steps * self._step_seconds,
        }

    def _publish(self, grown: Mapping[Counter, float]) -> None:
        self._steps += grown.get(Counter.DECODE_STEPS, 0.0)
        self._seconds += grown.get(Counter.DECODE_SECONDS, 0.0)
        if self._steps < _ENOUGH:
            return

        if self._seconds > 0:
            self._step_seconds = self._seconds / self._steps
        self._steps = 0.0
        self._seconds = 0.0


_AT_ONCE: Final = frozenset({Counter.GENERATION_TOKENS, Counter.FIRST_TOKENS})
