"""The engines on one server's pages: each under its own key up to the bound, the rest together as ``other``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidecar.analysis.engine_state import EngineState
from sidecar.engine.continuation import Continuation
from sidecar.engine.merge import OTHER, merge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.settings import Settings

_MOST_OTHERS = 256  # engines; protects against a page that keeps naming new ones


class Engines:
    """Keeps a state for each engine; bounded in engines and in time."""

    def __init__(self, settings: Settings) -> None:
        """``limits.engines`` have their own keys, first come, first served."""
        self._settings = settings
        self._most = settings.limits.engines
        self._overflow = _Overflow()
        self.states: dict[EngineKey, EngineState] = {}
        self.overflowed = 0  # engines that became "other", poll by poll

    def observe(self, at: float, page: PageSnapshot) -> bool:
        """Takes in a page's engines, each under the key by which it is kept; returns whether one restarted."""
        restarted = [self._observe(at, engine, page.process_start) for engine in self._bounded(page)]
        before = at - self._settings.history
        # A running vLLM has not shown them for a long time: it serves another model now.
        self.states = {key: state for key, state in self.states.items() if state.seen_at >= before}
        return any(restarted)

    def of(self, model_name: str) -> list[EngineState]:
        """The engines of one model."""
        return [state for key, state in self.states.items() if key.model_name == model_name]

    def _bounded(self, page: PageSnapshot) -> list[EngineSnapshot]:
        shown = {engine.key: engine for engine in page.engines}
        new = [key for key in shown if key not in self.states]
        own = [key for key in self.states if key != OTHER]
        gone = [key for key in own if key not in shown]
        for key in gone[: max(len(own) + len(new) - self._most, 0)]:
            del self.states[key]  # it makes room for one that is there
            own.remove(key)
        kept = {*own, *new[: self._most - len(own)]}
        rest = [engine for key, engine in shown.items() if key not in kept]
        self.overflowed += len(rest)
        other = self._overflow.merged(rest, page.process_start)
        inside = [engine for key, engine in shown.items() if key in kept]
        return inside if other is None else [*inside, other]

    def _observe(self, at: float, engine: EngineSnapshot, process_start: float | None) -> bool:
        state = self.states.get(engine.key)
        if state is None:
            state = self.states[engine.key] = EngineState(engine.key, self._settings)
        # Per engine, since one may appear several polls after its process restarted.
        # ``other`` is continued already.
        restarted = False if engine.key == OTHER else is_another(state.process_start, process_start)
        state.process_start = process_start
        return state.observe(at, engine, restarted=restarted, several=process_start is None)


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
