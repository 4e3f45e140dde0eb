"""The engines on one server's pages: each under its own key up to the bound, the rest together as ``other``."""

from sidecar.analysis.engine_state import EngineState, Lookback
from sidecar.analysis.overflow import Overflow, is_another
from sidecar.engine.continuation import Totals
from sidecar.engine.merge import OTHER
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.timeline import Timeline


class Engines:
    """Keeps a state for each engine; bounded in engines and in time."""

    def __init__(self, lookback: Lookback, most: int) -> None:
        """``most`` engines have their own keys, first come, first served."""
        self._lookback = lookback
        self._most = most
        self._overflow = Overflow()
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
