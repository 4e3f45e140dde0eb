"""What one sidecar remembers of its models: vLLM's counters every five minutes, for a little over a day."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from operator import sub
from typing import Final

from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Evidence
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey

_EVERY: Final = 300.0  # seconds
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
_KEPT: Final = round((_DAY + _HOUR / 2) / _EVERY) + 2  # the last one is the present
_COUNTERS: Final = (Counter.FIRST_TOKENS, Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)

_Sample = tuple[float, tuple[float, ...]]  # when, in seconds, and the counters
_Samples = deque[_Sample]


class Past:
    """Keeps a day of counters for the engines on the last page. A restart of the sidecar loses it."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, EngineKey], _Samples] = {}

    def observe(self, reports: Iterable[TargetReport], now: float) -> None:
        """Takes in the counters at ``now``, monotonic seconds; an engine whose counters fell starts over."""
        known, self._samples = self._samples, {}
        for report in reports:
            for engine in report.engines:
                if not engine.counters.keys() >= set(_COUNTERS):
                    continue  # a counter that appears later has not grown from 0 since
                counts = tuple(engine.counters[counter] for counter in _COUNTERS)
                samples = known.get((report.name, engine.key), deque(maxlen=_KEPT))
                if samples and any(after < before for after, before in zip(counts, samples[-1][1], strict=True)):
                    samples.clear()
                if len(samples) > 1 and samples[-1][0] - samples[-2][0] < _EVERY:
                    samples.pop()
                samples.append((now, counts))
                self._samples[report.name, engine.key] = samples

    def hour(self, target: str, model: str) -> Evidence | None:
        """The last hour, or as much of it as is known; None if nothing was drafted."""
        return _evidence((_before(one, _HOUR) or one[0], one[-1]) for one in self._of(target, model))

    def day_before(self, target: str, model: str) -> Evidence | None:
        """The same hour of the day before; None if it is not known in full, or nothing was drafted."""
        return _evidence(
            (start, end)
            for one in self._of(target, model)
            if (start := _before(one, _DAY + _HOUR / 2)) and (end := _before(one, _DAY - _HOUR / 2))
        )

    def seconds(self, target: str, model: str) -> float:
        """How long this model has been observed."""
        return max((one[-1][0] - one[0][0] for one in self._of(target, model)), default=0.0)

    def _of(self, target: str, model: str) -> list[_Samples]:
        return [one for (name, key), one in self._samples.items() if (name, key.model_name) == (target, model)]


def _before(samples: _Samples, seconds: float) -> _Sample | None:
    """The last sample at least ``seconds`` ago."""
    index = bisect_right(samples, samples[-1][0] - seconds, key=lambda sample: sample[0])
    return samples[index - 1] if index else None


def _evidence(spans: Iterable[tuple[_Sample, _Sample]]) -> Evidence | None:
    grown = [map(sub, after, before) for (_, before), (_, after) in spans]
    requests, drafts, draft_tokens, accepted = map(sum, zip(*grown, strict=True)) if grown else (0.0,) * len(_COUNTERS)
    if draft_tokens <= 0:
        return None
    return Evidence(
        requests=round(requests),
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        acceptance=min(accepted / draft_tokens, 1.0),
    )
