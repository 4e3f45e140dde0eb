"""The engines on one server's pages: each under its own key up to the bound, the rest together as ``other``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidecar.analysis.engine_state import EngineState, Lookback
from sidecar.engine.continuation import Continuation, Totals
from sidecar.engine.merge import OTHER, merge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.timeline import Timeline

_MOST_OTHERS = 256  # engines; protects against a page that keeps naming new ones


class Engines:
    """Keeps a state for each engine; bounded in engines and in time."""

    def __init__(self, lookback: Lookback, most: int) -> None:
        """``most`` engines have their own keys, first come, first served."""
        self._lookback = lookback
        self._most = most
        self._overflow = _Overflow()
        self.states: dict[EngineKey, EngineState] = {}
        self.overflowed = 0  # engines that became "other", poll by poll

    def bounded(self, page: PageSnapshot) -> list[EngineSnapshot]:
        """The page's engines under the keys by which they are kept; call it once per page."""
        own = [key for key in self.states if key != OTHER]
        new = [engine.key for engine in page.engines if engine.key not in self.states]
        kept = {*own, *new[: self._most - len(own)]}
        rest = [engine for engine in page.engines if engine.key not in kept]
        self.overflowed += len(rest)
        other = self._overflow.merged(rest, page.process_start)
        inside = [engine for engine in page.engines if engine.key in kept]
        return inside if other is None else [*inside, other]

    def observe(self, at: float, engine: EngineSnapshot, process_start: float | None) -> Totals:
        """Takes in one of the ``bounded`` engines."""
        state = self.states.get(engine.key)
        if state is None:
            state = self.states[engine.key] = EngineState(self._lookback)
        # Per engine, since one may appear several polls after its process restarted.
        # ``other`` is continued already.
        restarted = False if engine.key == OTHER else is_another(state.process_start, process_start)
        state.process_start = process_start
        return state.observe(at, engine, restarted=restarted)

    def forget(self, before: float) -> None:
        """Drops engines that a running vLLM has not shown for a long time: it serves another model now."""
        self.states = {key: state for key, state in self.states.items() if state.seen_at >= before}

    def timelines(self, page: PageSnapshot) -> dict[EngineKey, Timeline]:
        """The counters' histories of all engines on the page, each under its model.

        Engines past the bound are one; if they are of several models, their model is ``other``.
        """
        shown = {e.key: self.states[e.key].timeline for e in page.engines if e.key in self.states}
        rest = {engine.key.model_name for engine in page.engines if engine.key not in self.states}
        if rest:
            model = rest.pop() if len(rest) == 1 else OTHER.model_name
            shown[EngineKey(model, OTHER.engine)] = self.states[OTHER].timeline
        return shown


@dataclass(slots=True)
class _Carried:
    continuation: Continuation
    process_start: float | None
    totals: EngineSnapshot


class _Overflow:
    """Engines past the bound, each continued on its own: their sum never falls, even if one leaves or restarts."""

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
            if len(self._carried) >= _MOST_OTHERS:
                return
            one = self._carried[engine.key] = _Carried(Continuation(), process_start, engine)
        restarted = is_another(one.process_start, process_start)
        one.process_start = process_start
        one.totals = one.continuation.advance(engine, restarted=restarted).engine


def is_another(before: float | None, now: float | None) -> bool | None:
    """Whether two start times belong to two processes; None if one is unknown."""
    return None if before is None or now is None else before != now


def _gone(engine: EngineSnapshot) -> EngineSnapshot:
    """Its totals stay in the sum; what describes the moment does not."""
    return replace(engine, gauges={}, kv_cache_capacity_tokens=0)
