"""Engines past the bound on label values: each continued on its own, shown as one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidecar.engine.continuation import Continuation
from sidecar.engine.merge import merge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot

_MOST = 256  # engines; protects against a page that keeps naming new ones


@dataclass(slots=True)
class _Carried:
    continuation: Continuation
    process_start: float | None
    totals: EngineSnapshot


class Overflow:
    """Their sum never falls, even if one of them leaves the page for a while or restarts."""

    def __init__(self) -> None:
        self._carried: dict[EngineKey, _Carried] = {}

    def merged(self, engines: Sequence[EngineSnapshot], process_start: float | None) -> EngineSnapshot | None:
        """All of them so far, under the key ``other``, or None. ``engines`` are those on the page now."""
        for engine in engines:
            self._carry(engine, process_start)
        if not self._carried:
            return None
        shown = {engine.key for engine in engines}
        return merge([one.totals if key in shown else _gone(one.totals) for key, one in self._carried.items()])

    def _carry(self, engine: EngineSnapshot, process_start: float | None) -> None:
        one = self._carried.get(engine.key)
        if one is None:
            if len(self._carried) >= _MOST:
                return
            one = self._carried[engine.key] = _Carried(Continuation(), process_start, engine)
        restarted = is_another(one.process_start, process_start)
        one.process_start = process_start
        one.totals = one.continuation.advance(engine, restarted=restarted).engine


def is_another(before: float | None, now: float | None) -> bool | None:
    """Whether two start times belong to two processes; None if one is unknown."""
    return None if before is None or now is None else before != now


def _gone(engine: EngineSnapshot) -> EngineSnapshot:
    """Its totals stay in the sum; what holds only for the moment does not."""
    return replace(engine, gauges={}, kv_cache_capacity_tokens=0)
