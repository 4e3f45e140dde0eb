"""Whether each engine works: what a probe of vLLM's container may ask before it restarts it.

vLLM answers /health with 200 while its engine hangs (vLLM issues 45097, 45453 and 45526), so only
what moves tells. Whatever is unknown counts as healthy: a restart takes every request with it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sidecar.analysis.engine.engine_state import EngineState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Gauge
from sidecar.settings.groups import EngineHealth

_HOUR: Final = 3600.0
# Seconds for which vLLM must have denied that it is paused: one that was resumed a moment ago has
# not had the time to move.
_MOST_DENIED: Final = 30.0
# An engine may compile kernels with its first requests, so one that has generated nothing since it
# started is stalled only after so many seconds.
_FIRST_TOKEN: Final = 300.0
# Two polls that are so many planned intervals apart have missed something in between.
_MISSED: Final = 1.5


class Ailment(StrEnum):
    """What is wrong with an engine; in ``specdec_engine_healthy`` the label ``reason``."""

    STALLED = "stalled"  # requests run or a probe is out, and nothing moves for ``stalled_after``
    COLLAPSED = "collapsed"  # hardly any draft token has been accepted for ``collapsed_after``


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What one poll says about whether an engine works.

    ``moving`` is all that changes while it does: vLLM's counters, its KV-cache usage, and the
    plug-in's number of steps, which also grows during a long prefill, of which vLLM counts no
    token before the first output. ``is_awake`` is None where vLLM does not say. ``is_told`` is
    False on a page of several processes: there, a gauge may keep the value that the process had
    which last heard from the engine. ``has_generated`` is whether there was output since vLLM's
    start. ``has_collapsed`` is None while too little is drafted to tell. ``is_probed`` is whether
    it owes an answer to the sidecar's own request, while no engine of this vLLM has other work.
    """

    key: EngineKey
    running: float
    waiting: float
    moving: tuple[float | None, ...]
    is_awake: bool | None
    is_told: bool
    has_generated: bool
    has_collapsed: bool | None
    is_probed: bool = False


def vitals(state: EngineState, heartbeat: int | None, *, has_collapsed: bool | None) -> Vitals:
    """Those of an engine on the last page; ``heartbeat`` as in ``EngineView``.

    Waiting requests are no sign of life: clients go on sending to an engine that hangs.
    """
    page = state.latest
    gauges = page.gauges if page is not None else {}
    counters = page.counters if page is not None else {}
    is_awake = None
    if Gauge.AWAKE in gauges:
        is_awake = gauges[Gauge.AWAKE] > 0

    return Vitals(
        key=state.key,
        running=gauges.get(Gauge.REQUESTS_RUNNING, 0.0),
        waiting=gauges.get(Gauge.REQUESTS_WAITING, 0.0),
        moving=(*counters.values(), gauges.get(Gauge.KV_CACHE_USAGE), heartbeat),
        is_awake=is_awake,
        is_told=not state.is_sum,
        has_generated=counters.get(Counter.GENERATION_TOKENS, 0.0) > 0,
        has_collapsed=has_collapsed,
    )


def longest_still(settings: EngineHealth) -> float:
    """Seconds that an engine with work may stand still, before its first token included."""
    return max(settings.stalled_after, _FIRST_TOKEN)


@dataclass(frozen=True, slots=True)
class Ailing:
    """An engine that does not work, and since when, in Unix seconds.

    ``is_probed``: only the sidecar's own request tells, as no other runs.
    """

    key: EngineKey
    ailment: Ailment
    since: float
    is_probed: bool = False


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The engines at the last good poll.

    ``ailments`` says of each engine and ailment whether the engine has it, by model name, engine
    and ailment; a missing one is unknown or not watched. Whether an engine is stalled is unknown
    while it has nothing to do, as its page looks the same if it hangs. ``hanging`` are the models
    of which every engine on the page is stalled. ``restarts`` counts those of an ailing vLLM within
    the last hour; once there are ``most_restarts``, the probe leaves vLLM alone.
    """

    ailments: Mapping[tuple[str, str, Ailment], bool] = field(default_factory=dict)
    ailing: tuple[Ailing, ...] = ()
    hanging: frozenset[str] = frozenset()
    restarts: int = 0
    most_restarts: int = 0

    @property
    def stalled(self) -> tuple[Ailing, ...]:
        """The engines that are stalled."""
        return tuple(one for one in self.ailing if one.ailment is Ailment.STALLED)

    @property
    def is_left_alone(self) -> bool:
        """Whether vLLM has been restarted so often that one more restart is not asked for."""
        return self.restarts >= self.most_restarts

    @property
    def asks_for_restart(self) -> bool:
        """Whether the probe should fail."""
        return bool(self.ailing) and not self.is_left_alone


@dataclass(frozen=True, slots=True)
class _Stillness:
    """Since when nothing has moved while requests ran, and what stood still.

    ``moved_at`` is when something moved last, with requests or without; None if that was not seen.
    """

    since: float
    vitals: Vitals
    moved_at: float | None

    @property
    def is_working(self) -> bool:
        """Whether it has running requests, or owes an answer to a probe, and is not asleep."""
        has_work = self.vitals.running > 0 or self.vitals.is_probed
        return has_work and self.vitals.is_awake is not False


class HealthWatch:
    """Watches the engines poll by poll.

    Bounded: it keeps the engines of the last page, and the restarts of an hour.
    """

    def __init__(self, settings: EngineHealth) -> None:
        self._settings = settings
        self._polled: float | None = None  # the last good poll
        self._present: frozenset[EngineKey] = frozenset()
        self._still: dict[EngineKey, _Stillness] = {}
        self._collapsed: dict[EngineKey, float] = {}  # since when
        # When vLLM was first asked in this suspicion without saying that it is paused.
        self._denied_since: float | None = None
        self._was_ailing = False
        self._restarts: deque[float] = deque()

    @property
    def suspects_stall(self) -> bool:
        """Whether an engine may be stalled soon, so that vLLM should be asked if it is paused."""
        return bool(self._standing_still(self._deny_seconds))

    @property
    def is_stalled(self) -> bool:
        """Whether an engine was stalled at the last good poll."""
        return bool(self._stalled())

    def apply(self, settings: EngineHealth) -> None:
        """Judges by these settings from the next poll on."""
        self._settings = settings

    def polled(
        self, at: float, interval: float, engines: Iterable[Vitals], *, has_restarted: bool
    ) -> None:
        """Takes in a good poll at ``at``, ``interval`` seconds after the last one as planned.

        ``has_restarted`` is as in ``Restarts.vllm``.
        """
        if has_restarted:
            self._restarted(at)
        elif self._polled is not None and at - self._polled > self._most_apart(interval):
            # Nobody saw what moved in between.
            self._still.clear()
            self._collapsed.clear()
        self._polled = at
        while self._restarts and self._restarts[0] <= at - _HOUR:
            self._restarts.popleft()

        present = list(engines)
        self._present = frozenset(one.key for one in present)
        self._still = {one.key: self._stillness(at, one) for one in present if one.is_told}
        if not self.suspects_stall:
            self._denied_since = None  # whether vLLM is paused is asked for each stall anew
        self._collapsed = {
            one.key: self._collapsed.get(one.key, at) for one in present if one.has_collapsed
        }
        self._was_ailing = bool(self._ailing(at))

    def answered(self, at: float, *, is_paused: bool) -> None:
        """Takes in whether vLLM says at ``at`` that it is paused; no answer is no."""
        if is_paused:
            self._still.clear()  # nothing has to move until vLLM is resumed
            self._denied_since = None
        elif self._denied_since is None:
            self._denied_since = at

    def report(self, *, is_fresh: bool) -> HealthReport:
        """The engines at the last good poll; nothing is known unless that is fresh."""
        restarts = len(self._restarts)
        most = self._settings.most_restarts_per_hour
        if not is_fresh or self._polled is None:
            return HealthReport(restarts=restarts, most_restarts=most)

        ailing = self._ailing(self._polled)
        ailments = {
            (*key, ailment): False
            for key, still in self._still.items()
            for ailment in self._known_free(self._polled, still)
        }
        ailments |= {(*one.key, one.ailment): True for one in ailing}
        return HealthReport(ailments, tuple(ailing), self._hanging(ailing), restarts, most)

    def _hanging(self, ailing: Iterable[Ailing]) -> frozenset[str]:
        """The models that no engine serves any more."""
        stalled = {one.key for one in ailing if one.ailment is Ailment.STALLED}
        alive = {key.model_name for key in self._present - stalled}
        return frozenset(key.model_name for key in stalled) - alive

    def _known_free(self, at: float, still: _Stillness) -> Iterator[Ailment]:
        """What an engine is known not to have."""
        is_awake = still.vitals.is_awake is not False
        moved = still.moved_at
        if is_awake and moved is not None and at - moved <= self._settings.stalled_after:
            yield Ailment.STALLED
        if self._settings.collapsed_after is not None and still.vitals.has_collapsed is not None:
            yield Ailment.COLLAPSED

    def _most_apart(self, interval: float) -> float:
        return max(self._settings.stalled_after / 2, _MISSED * interval)

    def _restarted(self, at: float) -> None:
        if self._was_ailing:
            self._restarts.append(at)
        self._still.clear()
        self._collapsed.clear()

    def _stillness(self, at: float, engine: Vitals) -> _Stillness:
        before = self._still.get(engine.key)
        if before is None:
            return _Stillness(at, engine, moved_at=None)

        has_moved = before.vitals.moving != engine.moving
        now = _Stillness(at, engine, moved_at=at if has_moved else before.moved_at)
        if not now.is_working or not before.is_working or has_moved:
            return now
        return replace(now, since=before.since)

    @property
    def _deny_seconds(self) -> float:
        return min(_MOST_DENIED, self._settings.stalled_after / 2)

    def _standing_still(self, before: float = 0.0) -> list[Ailing]:
        """Engines with work and nothing that moves, whether vLLM is paused or not.

        They have stood still for as long as a stall takes, or ``before`` seconds less.
        """
        if self._polled is None:
            return []

        found = []
        for key, still in self._still.items():
            seconds = self._settings.stalled_after
            if not still.vitals.has_generated:
                seconds = longest_still(self._settings)
            if still.is_working and self._polled - still.since >= seconds - before:
                is_probed = not still.vitals.running
                found.append(Ailing(key, Ailment.STALLED, still.since, is_probed))
        return found

    def _stalled(self) -> list[Ailing]:
        """Those that have stood still for long although vLLM is not paused."""
        denied = self._denied_since
        if self._polled is None or denied is None or self._polled - denied < self._deny_seconds:
            return []
        return self._standing_still()

    def _ailing(self, at: float) -> list[Ailing]:
        stalled = self._stalled()
        after = self._settings.collapsed_after
        if after is None:
            return stalled

        collapsed = [
            Ailing(key, Ailment.COLLAPSED, since)
            for key, since in self._collapsed.items()
            if at - since >= after
        ]
        return stalled + collapsed
