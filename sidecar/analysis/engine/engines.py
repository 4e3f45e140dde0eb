"""The engines on vLLM's pages.

Up to a limit, engines have their own keys; the rest are ``other``.
"""

from dataclasses import replace
from typing import Final

from sidecar.analysis.engine.engine_state import EngineState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.merge import OTHER_ENGINES, hold_counters, merge
from sidecar.engine.restarts import RestartDetector, Restarts
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.settings import Settings

_FEWEST_POLLS: Final = 30  # at which an engine is absent before it is forgotten
_MOST_OTHERS: Final = 1000  # engines in the sum "other"


class Engines:
    """Keeps a state for each engine; bounded in engines and in time."""

    def __init__(self, settings: Settings) -> None:
        """The first ``limits.engines`` engines have their own keys.

        They are of at most ``limits.models`` models.
        """
        self._settings = settings
        self._limits = settings.limits
        self.states: dict[EngineKey, EngineState] = {}
        self._others: dict[EngineKey, EngineSnapshot] = {}  # what is summed as "other"
        self._detector = RestartDetector()
        self._polled_at: float | None = None
        self._passed = 0.0  # seconds, as far as polls tell
        self._shown_at: dict[EngineKey, float] = {}  # by them, when each was last on the page
        self.restarts = 0  # of vLLM
        self.overflowed = 0  # engines that became "other", poll by poll

    def observe(self, at: float, page: PageSnapshot) -> Restarts:
        """Takes in a page's engines; returns what has started again.

        Engines are kept under their own keys or as ``other``.

        Raises:
            AnotherServer, CountersFell: as ``RestartDetector.detect``; nothing has changed then.
        """
        restarts = self._detector.detect(page)
        self.restarts += restarts.vllm

        for engine in self._bounded(page, is_same=not restarts.vllm):
            state = self.states.get(engine.key) or EngineState(engine.key, self._settings)
            self.states[engine.key] = state
            if restarts.is_foreign:
                state.restart_windows()
            has_restarted = restarts.vllm or engine.key in restarts.engines
            state.observe(at, engine, has_restarted=has_restarted, is_sum=page.is_sum)

        if restarts.vllm:
            self.states = {key: state for key, state in self.states.items() if state.seen_at == at}
        self._forget_absent(at)
        return restarts

    def _forget_absent(self, at: float) -> None:
        """Forgets engines that a running vLLM has not shown for long: it serves another model now.

        A clock that is set forward is no long absence, so no pause between two polls counts for
        more than a part of it.
        """
        history = self._settings.history
        if self._polled_at is not None:
            self._passed += min(max(at - self._polled_at, 0.0), history / _FEWEST_POLLS)
        self._polled_at = at

        shown = (key for key, state in self.states.items() if state.seen_at == at)
        self._shown_at |= dict.fromkeys(shown, self._passed)
        since = self._passed - history
        self.states = {
            key: state for key, state in self.states.items() if self._shown_at[key] >= since
        }
        self._shown_at = {key: self._shown_at[key] for key in self.states}

    @property
    def is_in_doubt(self) -> bool:
        """As ``RestartDetector.is_in_doubt``: which process the last counters are of is unknown."""
        return self._detector.is_in_doubt

    def of(self, model_name: str) -> list[EngineState]:
        """The engines of one model."""
        return [state for key, state in self.states.items() if key.model_name == model_name]

    def _bounded(self, page: PageSnapshot, *, is_same: bool) -> list[EngineSnapshot]:
        shown = {engine.key: engine for engine in page.engines}
        own = [key for key in self.states if key != OTHER_ENGINES]
        kept: set[EngineKey] = set()
        # Engines that have left the page come last: they make room for those that are on it.
        for key in sorted(dict.fromkeys((*own, *shown)), key=lambda key: key not in shown):
            models = {one.model_name for one in kept} | {key.model_name}
            if len(kept) < self._limits.engines and len(models) <= self._limits.models:
                kept.add(key)

        for key in set(own) - kept:
            del self.states[key]

        inside = [engine for key, engine in shown.items() if key in kept]
        rest = [engine for key, engine in shown.items() if key not in kept]
        if not rest:
            return inside

        self.overflowed += len(rest)
        return [*inside, self._other(rest, is_same=is_same)]

    def _other(self, rest: list[EngineSnapshot], *, is_same: bool) -> EngineSnapshot:
        """The rest together; an engine that leaves it keeps what it had counted in the sum."""
        if not is_same or len(self._others) > _MOST_OTHERS:
            self._others = {}

        has_new = any(engine.key not in self._others for engine in rest)
        self._others |= {engine.key: engine for engine in rest}
        ever = merge(list(self._others.values()))
        other = replace(
            merge(rest),
            counters=ever.counters,
            accepted_per_position=ever.accepted_per_position,
            histograms=ever.histograms,
        )

        known = self.states.get(OTHER_ENGINES)
        if not has_new or known is None:
            return other

        last = known.held
        known.restart_windows()  # what a new engine has counted so far is not growth
        if not is_same or last is None:
            return other
        return hold_counters(last, other)
