"""When the sidecar's own request is due, and what its answer, or none, says of an idle engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.engine.health import Vitals
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.probe import ProbeOutcome, ProbeTarget
from sidecar.settings.groups import Probe

_SUCCESS: Final = {
    ProbeOutcome.ANSWERED: True,
    ProbeOutcome.UNANSWERED: False,
    ProbeOutcome.REFUSED: False,
    ProbeOutcome.UNREACHABLE: False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """How the probes went.

    ``is_answered`` is of the last one: None before the first, while one is out, and if the engine
    had other work. ``seconds`` is how long the last answer took. ``outcomes`` is empty if there are
    no probes.
    """

    is_answered: bool | None = None
    seconds: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Quiet:
    """Since when an engine had no work and nothing of it has moved, and what stood still."""

    since: float
    moving: tuple[float | None, ...]


class Probes:
    """Decides by the polls when a probe is due, one at a time and one in ``interval`` at most.

    It is due while all engines of the page are known to have no work, and for one of which nothing
    has moved for an interval: what moves works. While another engine works, nothing is concluded
    from a request that has no answer either: it may be that engine that has it. After a request
    that was not answered in time, the next one follows at once, so that an engine that goes on
    again is soon known to.

    Bounded: it keeps the engines of the last page.
    """

    def __init__(self, settings: Probe) -> None:
        self._interval = settings.interval
        self._polled = 0.0  # the last good poll
        self._is_idle = False  # whether no engine had work then
        self._quiet: dict[EngineKey, _Quiet] = {}
        self._asked: dict[EngineKey, float] = {}  # when each engine was asked last
        self._last: float | None = None  # when any was, or would have been
        self._target: EngineKey | None = None  # of the request that is due or out
        self._is_out = False
        self._unanswered: EngineKey | None = None  # has owed an answer since a request was sent

        self._is_answered: bool | None = None
        self._seconds: float | None = None
        self._outcomes = dict.fromkeys(map(str, ProbeOutcome), 0)

    @property
    def report(self) -> ProbeReport:
        """Now."""
        if self._interval is None:
            return ProbeReport()
        return ProbeReport(
            is_answered=None if self._is_out else self._is_answered,
            seconds=self._seconds,
            outcomes=dict(self._outcomes),
        )

    def polled(
        self, at: float, engines: Sequence[Vitals], *, is_whole: bool, has_restarted: bool
    ) -> None:
        """Takes in a good poll; ``is_whole``: ``engines`` are all that the page has."""
        if self._interval is None:
            return

        self._polled = at
        self._is_idle = is_whole and all(map(_is_idle, engines))
        before = self._quiet if self._is_idle and not has_restarted else {}
        self._quiet = {one.key: _quiet(at, one, before.get(one.key)) for one in engines}
        self._asked = {key: when for key, when in self._asked.items() if key in self._quiet}

        if has_restarted or self._unanswered not in self._quiet:
            self._unanswered = None

    def missed(self) -> None:
        """A poll has failed: until the next good one nobody knows whether vLLM is idle."""
        self._is_idle = False  # what stands still at both ends of a gap stood still within it

    def awaits(self, key: EngineKey) -> bool:
        """Whether the engine owes an answer, and by the last poll no engine had other work."""
        return self._is_idle and key == self._unanswered

    def due(self, at: float) -> ProbeTarget | None:
        """See ``ProbeSubject``."""
        if self._is_out or not self._is_idle:
            return None

        key = self._unanswered or self._waits_longest(at)
        if key is None:
            return None

        self._target = key
        return ProbeTarget(key.model_name, key.number if len(self._quiet) > 1 else None)

    def put_off(self, at: float) -> None:
        """See ``ProbeSubject``."""
        self._last = at
        self._unanswered = None  # that is why

    def sent(self, at: float) -> None:
        """See ``ProbeSubject``."""
        self._last = at
        self._is_out = True
        self._unanswered = self._target
        if self._target is not None:
            self._asked[self._target] = at

    def ended(self, outcome: ProbeOutcome, seconds: float) -> ProbeOutcome:
        """See ``ProbeSubject``."""
        if outcome is ProbeOutcome.UNANSWERED and not self._is_still():
            outcome = ProbeOutcome.OVERTAKEN

        self._is_out = False
        self._is_answered = _SUCCESS.get(outcome)
        self._outcomes[outcome] += 1
        if outcome is ProbeOutcome.ANSWERED:
            self._seconds = seconds
        if outcome is not ProbeOutcome.UNANSWERED:
            self._unanswered = None
        return outcome

    def _waits_longest(self, at: float) -> EngineKey | None:
        """The engine that it is time to ask; None if it is not time for any."""
        interval = self._interval
        if interval is None or (self._last is not None and at - self._last < interval):
            return None

        key = min(self._quiet, key=self._waits_since, default=None)
        if key is None or at - self._waits_since(key) < interval:
            return None
        return key

    def _waits_since(self, key: EngineKey) -> float:
        return max(self._quiet[key].since, self._asked.get(key, 0.0))

    def _is_still(self) -> bool:
        """Whether the engine that was asked has done nothing for an interval."""
        quiet = self._quiet.get(self._target) if self._target is not None else None
        if self._interval is None or quiet is None or not self._is_idle:
            return False
        return self._polled - quiet.since >= self._interval


def _is_idle(engine: Vitals) -> bool:
    """Whether the page says that it has no work, and is not asleep."""
    has_work = engine.running > 0 or engine.waiting > 0
    return engine.is_told and engine.is_awake is not False and not has_work


def _quiet(at: float, engine: Vitals, before: _Quiet | None) -> _Quiet:
    if before is None or before.moving != engine.moving:
        return _Quiet(at, engine.moving)
    return before
