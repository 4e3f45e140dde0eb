"""How polling goes, and the engines on the pages.

Up to a limit, engines have their own keys; the rest are ``other``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.analysis.engine.engine_state import EngineState
from sidecar.engine.merge import OTHER, held, merge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.settings import Settings

_FRESH_INTERVALS: Final = 2  # number of intervals for which a poll's data are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeReport:
    """How polling vLLM goes.

    ``up``: the last poll succeeded and is at most two intervals old. ``interval`` is in force now.
    """

    up: bool = False
    last_scrape: float | None = None  # when the last good poll was; None before the first
    duration: float | None = None
    interval: float  # the configured one until the first poll
    errors: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys(ScrapeError.reasons(), 0)
    )
    last_error: ScrapeError | None = None  # None while up
    malformed_lines: int = 0
    vllm_restarts: int = 0

    def scraped(
        self, at: float, duration: float, interval: float, malformed: int
    ) -> "ScrapeReport":
        """After a good poll."""
        timed = replace(self, last_scrape=at, duration=duration, interval=interval)
        return replace(timed, last_error=None, malformed_lines=self.malformed_lines + malformed)

    def failed(self, error: ScrapeError) -> "ScrapeReport":
        """After a failed poll; ``errors`` counts them by ``ScrapeError.reason``."""
        return replace(
            self,
            errors={**self.errors, error.reason: self.errors[error.reason] + 1},
            last_error=error,
        )

    def at(self, now: float, restarts: int) -> "ScrapeReport":
        """At ``now``; ``restarts`` is how often vLLM has restarted."""
        longest = _FRESH_INTERVALS * self.interval
        is_recent = self.last_scrape is not None and now - self.last_scrape <= longest
        return replace(self, up=is_recent and self.last_error is None, vllm_restarts=restarts)


_MOST_OTHERS: Final = 1000  # engines in the sum "other"


@dataclass(frozen=True, slots=True)
class Restarts:
    """What started again before a page.

    It is vLLM, or, in the same process, the counters of single engines.
    """

    vllm: bool
    engines: frozenset[EngineKey]


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
        self._process_start: float | None = None
        self.restarts = 0  # of vLLM
        self.overflowed = 0  # engines that became "other", poll by poll

    def observe(self, at: float, page: PageSnapshot) -> Restarts:
        """Takes in a page's engines; returns what has restarted.

        Engines are kept under their own keys or as ``other``.
        """
        start, self._process_start = self._process_start, page.process_start
        is_another = _differ(start, page.process_start)

        reset: set[EngineKey] = set()
        has_held = False  # whether an engine that had counted anything has not started again
        for engine in self._bounded(page, is_same=not is_another):
            state = self.states.get(engine.key) or EngineState(engine.key, self._settings)
            self.states[engine.key] = state
            # Compared with its own last page: an engine may appear some polls after its process
            # restarted.
            known = _differ(state.process_start, page.process_start)
            if engine.key == OTHER:  # if a sum falls, an engine has left it
                known = bool(known)
            state.process_start = page.process_start
            had_counted = state.has_counted
            if state.observe(at, engine, restarted=known, several=page.process_start is None):
                reset.add(engine.key)
            else:
                has_held |= had_counted

        has_restarted = bool(reset) and not has_held if is_another is None else is_another
        self.restarts += has_restarted

        # If a running vLLM has not shown an engine for a long time, it serves another model now.
        before = at if has_restarted else at - self._settings.history
        self.states = {key: state for key, state in self.states.items() if state.seen_at >= before}
        return Restarts(has_restarted, frozenset() if has_restarted else frozenset(reset))

    def of(self, model_name: str) -> list[EngineState]:
        """The engines of one model."""
        return [state for key, state in self.states.items() if key.model_name == model_name]

    def _bounded(self, page: PageSnapshot, *, is_same: bool) -> list[EngineSnapshot]:
        shown = {engine.key: engine for engine in page.engines}
        own = [key for key in self.states if key != OTHER]
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
        self.overflowed += len(rest)
        return [*inside, self._other(rest, is_same=is_same)] if rest else inside

    def _other(self, rest: list[EngineSnapshot], *, is_same: bool) -> EngineSnapshot:
        """The rest together; an engine that leaves it keeps what it had counted in the sum."""
        if not is_same or len(self._others) > _MOST_OTHERS:
            self._others = {}
        has_new = any(engine.key not in self._others for engine in rest)
        self._others |= {engine.key: engine for engine in rest}
        present, every = merge(rest), merge([*self._others.values()])
        counters, positions = every.counters, every.accepted_per_position
        other = replace(
            present, counters=counters, accepted_per_position=positions, histograms=every.histograms
        )
        if has_new and OTHER in self.states:  # what a new engine has counted so far is not growth
            last = self.states[OTHER].held
            self.states[OTHER].restart_windows()
            return held(last, other) if is_same and last is not None else other
        return other


def _differ(before: float | None, now: float | None) -> bool | None:
    """Whether two start times belong to different processes; None if one is unknown."""
    return None if before is None or now is None else before != now


def shown_positions(settings: Settings, engines: int) -> int:
    """How many draft positions have label values of their own.

    So many that a pod stays within its number of series.
    """
    return min(settings.limits.positions, 6 + 6 * max(8 - engines, 0))
