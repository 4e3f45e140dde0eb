"""The engines on one server's pages: each under its own key up to the bound, the rest together as ``other``."""

from sidecar.analysis.engine_state import EngineState
from sidecar.engine.merge import OTHER, merge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.settings import Settings


class Engines:
    """Keeps a state for each engine; bounded in engines and in time."""

    def __init__(self, settings: Settings) -> None:
        """``limits.engines`` have their own keys, first come, first served."""
        self._settings = settings
        self._most = settings.limits.engines
        self.states: dict[EngineKey, EngineState] = {}
        self._others: set[EngineKey] = set()  # the keys that "other" last was the sum of
        self.overflowed = 0  # engines that became "other", poll by poll

    def observe(self, at: float, page: PageSnapshot) -> set[str]:
        """Takes in a page's engines, each under the key by which it is kept; returns the models that restarted."""
        restarted = {
            engine.key.model_name for engine in self._bounded(page) if self._observe(at, engine, page.process_start)
        }
        before = at - self._settings.history
        # A running vLLM has not shown them for a long time: it serves another model now.
        self.states = {key: state for key, state in self.states.items() if state.seen_at >= before}
        return restarted

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
        inside = [engine for key, engine in shown.items() if key in kept]
        rest = [engine for key, engine in shown.items() if key not in kept]
        self.overflowed += len(rest)
        return [*inside, self._other(rest)] if rest else inside

    def _other(self, rest: list[EngineSnapshot]) -> EngineSnapshot:
        merged, before = merge(rest), self._others
        self._others = {engine.key for engine in rest}
        if OTHER in self.states and self._others != before:
            self.states[OTHER].count_from(merged)  # an engine that comes or goes is no growth
        return merged

    def _observe(self, at: float, engine: EngineSnapshot, process_start: float | None) -> bool:
        state = self.states.get(engine.key)
        if state is None:
            state = self.states[engine.key] = EngineState(engine.key, self._settings)
        # Per engine, since one may appear several polls after its process restarted.
        restarted = is_another(state.process_start, process_start)
        if engine.key == OTHER:  # a sum that falls has lost an engine
            restarted = bool(restarted)
        state.process_start = process_start
        return state.observe(at, engine, restarted=restarted, several=process_start is None)


def is_another(before: float | None, now: float | None) -> bool | None:
    """Whether two start times belong to two processes; None if one is unknown."""
    return None if before is None or now is None else before != now
