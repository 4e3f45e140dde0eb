"""Whether each engine works: what a probe of vLLM's container may ask before it restarts it.

vLLM answers /health with 200 while its engine hangs (vLLM issues 45097, 45453 and 45526), so only
what moves tells. Whatever is unknown counts as healthy: a restart takes every request with it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.analysis.engine.engine_state import EngineState
from sidecar.engine.identity import EngineKey
from sidecar.engine.names import Gauge
from sidecar.settings.groups import EngineHealth

_HOUR: Final = 3600.0
# Seconds for which vLLM must have said that it is not paused: one that was resumed a moment ago has
# not had the time to move.
_ASKED_FOR: Final = 30.0


class Ailment(StrEnum):
    """What is wrong with an engine; the label value of ``specdec_engine_healthy``."""

    STALLED = "stalled"  # requests run, and nothing has moved for ``stalled_after``
    COLLAPSED = "collapsed"  # hardly any draft token has been accepted for ``collapsed_after``


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What one poll says about whether an engine works.

    ``moving`` is all that changes while it does: vLLM's counters, its KV-cache usage, and the
    plug-in's number of steps, which also grows during a long prefill, of which vLLM counts no
    token before the first output. ``is_awake`` is None where vLLM does not say.
    """

    key: EngineKey
    running: float
    moving: tuple[float | None, ...]
    is_awake: bool | None
    has_collapsed: bool


def vitals(state: EngineState, heartbeat: int | None, *, has_collapsed: bool) -> Vitals:
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
        moving=(*counters.values(), gauges.get(Gauge.KV_CACHE_USAGE), heartbeat),
        is_awake=is_awake,
        has_collapsed=has_collapsed,
    )


@dataclass(frozen=True, slots=True)
class Ailing:
    """An engine that does not work, and since when, in Unix seconds."""

    key: EngineKey
    ailment: Ailment
    since: float


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The engines at the last good poll.

    ``known`` says of each engine and ailment whether it has it, by model name, engine and ailment;
    a missing one is unknown or not watched. ``restarts`` counts those of an ailing vLLM within the
    last hour; once there are ``limit`` of them, the probe leaves vLLM alone.
    """

    known: Mapping[tuple[str, str, Ailment], bool] = field(default_factory=dict)
    ailing: tuple[Ailing, ...] = ()
    restarts: int = 0
    limit: int = 0

    @property
    def stalled(self) -> tuple[Ailing, ...]:
        """The engines that are stalled."""
        return tuple(one for one in self.ailing if one.ailment is Ailment.STALLED)

    @property
    def is_left_alone(self) -> bool:
        """Whether vLLM has been restarted so often that one more restart is not asked for."""
        return self.restarts >= self.limit

    @property
    def asks_for_restart(self) -> bool:
        """Whether the probe should fail."""
        return bool(self.ailing) and not self.is_left_alone


class HealthWatch:
    """Watches the engines poll by poll; bounded, since it keeps only those of the last page."""

    def __init__(self, settings: EngineHealth) -> None:
        self._settings = settings
        self._polled: float | None = None  # the last good poll
        self._still: dict[EngineKey, _Stillness] = {}
        self._collapsed: dict[EngineKey, float] = {}  # since when
        self._unpaused_since: float | None = None  # since when vLLM has not said that it is paused
        self._was_ailing = False
        self._restarts: deque[float] = deque()

    def apply(self, settings: EngineHealth) -> None:
        """Judges by these settings from the next poll on."""
        self._settings = settings

    def polled(self, at: float, engines: Iterable[Vitals], *, has_restarted: bool) -> None:
        """Takes in a good poll at ``at``; ``has_restarted`` as in ``Restarts.vllm``."""
        if has_restarted:
            self._restarted(at)
        elif self._polled is not None and at - self._polled > self._settings.stalled_after / 2:
            # Nobody saw what moved in between.
            self._still.clear()
            self._collapsed.clear()

        self._polled = at

        present = list(engines)
        self._still = {one.key: self._stillness(at, one) for one in present}
        if not self.suspects_stall:
            self._unpaused_since = None  # whether vLLM is paused is asked for each stall anew

        self._collapsed = {
            one.key: self._collapsed.get(one.key, at) for one in present if one.has_collapsed
        }
        self._was_ailing = self._was_ailing or bool(self._ailing(at))

    def _restarted(self, at: float) -> None:
        if self._was_ailing:
            self._restarts.append(at)
        self._was_ailing = False
        self._still.clear()
        self._collapsed.clear()

    def _stillness(self, at: float, engine: Vitals) -> "_Stillness":
        before = self._still.get(engine.key)
        is_working = engine.running > 0 and engine.is_awake is not False
        if before is None or not is_working or not before.is_working:
            return _Stillness(at, engine.moving, is_working=is_working)
        if before.moving != engine.moving:
            return _Stillness(at, engine.moving, is_working=True)
        return before

    @property
    def suspects_stall(self) -> bool:
        """Whether an engine may be stalled soon, so that vLLM should be asked if it is paused."""
        return bool(self._standing_still(self._settings.stalled_after - self._asked_for))

    def answered(self, at: float, *, is_paused: bool) -> None:
        """Takes in whether vLLM says at ``at`` that it is paused; no answer is no."""
        if is_paused:
            self._still.clear()  # nothing has to move until vLLM is resumed
            self._unpaused_since = None
        elif self._unpaused_since is None:
            self._unpaused_since = at

    @property
    def _asked_for(self) -> float:
        return min(_ASKED_FOR, self._settings.stalled_after / 2)

    def _standing_still(self, seconds: float) -> list[Ailing]:
        """Engines with running requests and nothing that moves, whether vLLM is paused or not."""
        if self._polled is None:
            return []
        return [
            Ailing(key, Ailment.STALLED, still.since)
            for key, still in self._still.items()
            if still.is_working and self._polled - still.since >= seconds
        ]

    def _stalled(self) -> list[Ailing]:
        """Those that have stood still for long although vLLM is not paused."""
        asked = self._unpaused_since
        if self._polled is None or asked is None or self._polled - asked < self._asked_for:
            return []
        return self._standing_still(self._settings.stalled_after)

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

    def report(self, *, is_fresh: bool) -> HealthReport:
        """The engines at the last good poll; nothing is known unless that is fresh."""
        while self._polled and self._restarts and self._restarts[0] <= self._polled - _HOUR:
            self._restarts.popleft()

        restarts = len(self._restarts)
        limit = self._settings.restarts_per_hour
        if not is_fresh or self._polled is None:
            return HealthReport(restarts=restarts, limit=limit)

        ailing = self._ailing(self._polled)
        ill = {(one.key, one.ailment) for one in ailing}
        watched = [Ailment.STALLED]
        if self._settings.collapsed_after is not None:
            watched.append(Ailment.COLLAPSED)

        known = {
            (*key, ailment): (key, ailment) in ill for key in self._still for ailment in watched
        }
        return HealthReport(known, tuple(ailing), restarts, limit)


@dataclass(frozen=True, slots=True)
class _Stillness:
    """Since when nothing has moved, and what stood still."""

    since: float
    moving: tuple[float | None, ...]
    is_working: bool  # it has running requests, and is not asleep
