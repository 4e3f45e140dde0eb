"""What ``for`` and ``keep_firing_for`` do in Prometheus, for the direct push: which matches fire, and since when."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sidecar.alerting.conditions import Match
from sidecar.alerting.rules import Rule

Key = tuple[str, str, frozenset[tuple[str, str]]]  # an alert's name, its severity and its match's labels

RESOLVED_SECONDS: Final = 900.0  # how long a resolved alert is kept, as in Prometheus


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule whose condition holds for ``match``; ``context`` is text for the notification."""

    rule: Rule
    match: Match
    context: str = ""

    @property
    def key(self) -> Key:
        """Its identity among all alerts, as Alertmanager sees it: two rules may share a name."""
        return self.rule.name, self.rule.severity, frozenset(self.match.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An alert that fires, or did until ``ended``: Unix seconds, None while it fires."""

    alert: Alert
    started: float
    ended: float | None = None


@dataclass(slots=True)
class _Course:
    """One alert over time. ``since`` and ``held`` are in the monotonic clock's seconds, the others Unix seconds."""

    alert: Alert
    since: float  # the condition has held without a break
    held: float  # the condition last held
    started: float | None = field(default=None, kw_only=True)
    ended: float | None = field(default=None, kw_only=True)
    ended_at: float = field(default=0.0, kw_only=True)  # ``ended`` in the monotonic clock's seconds

    def notice(self, wall: float) -> Notice | None:
        """The alert as of ``wall``, with no later time in it; None before it fires."""
        if self.started is None:
            return None
        self.started = min(self.started, wall)
        self.ended = None if self.ended is None else min(self.ended, wall)
        return Notice(alert=self.alert, started=self.started, ended=self.ended)


def _wholes(key: Key) -> tuple[Key, ...]:
    """For an alert on a temperature, the alerts on the whole model that would explain it; none for any other."""
    name, _, labels = key
    if name != "SpecDecodeAcceptanceLowAtTemperature":
        return ()
    model = frozenset(pair for pair in labels if pair[0] != "temperature")
    return tuple(("SpecDecodeAcceptanceLow", severity, model) for severity in ("critical", "info"))


class Tracker:
    """Follows alerts from evaluation to evaluation; at most ``most`` at a time, ``overflowed`` counts the others."""

    def __init__(self, pace: float = 1.0, most: int = 1000) -> None:
        """``pace`` multiplies how long conditions must hold and how long alerts outlast them."""
        self._pace = pace
        self._most = most
        self._courses: dict[Key, _Course] = {}
        self.overflowed = 0

    def update(self, alerts: Iterable[Alert], now: float, wall: float) -> dict[Key, Notice]:
        """Takes in all alerts whose condition holds at ``now`` (monotonic seconds; ``wall``: Unix seconds).

        Returns what Alertmanager should know. No time in it is later than ``wall``, even if the clock was set back:
        Alertmanager rejects an alert that starts after it ends.
        """
        current = {alert.key: alert for alert in alerts}
        for key in self._courses.keys() - current.keys():
            self._fails(key, self._courses[key], now, wall)
        for key, alert in current.items():
            if not any(whole in self._courses and self._courses[whole].ended is not None for whole in _wholes(key)):
                self._holds(key, alert, now, wall)
            elif key in self._courses:  # it ends with what explains it, as in the rules
                self._fails(key, self._courses[key], now, wall)
        return {key: notice for key, course in self._courses.items() if (notice := course.notice(wall))}

    def _holds(self, key: Key, alert: Alert, now: float, wall: float) -> None:
        course = self._courses.get(key)
        if course is None or course.ended is not None:
            if course is None and len(self._courses) >= self._most:
                self.overflowed += 1
                return
            course = self._courses[key] = _Course(alert, now, now)
        course.alert, course.held = alert, now
        if course.started is None and now - course.since >= self._pace * alert.rule.wait:
            course.started = wall

    def _fails(self, key: Key, course: _Course, now: float, wall: float) -> None:
        if course.started is None:
            del self._courses[key]
        elif course.ended is None and now - course.held >= self._pace * course.alert.rule.keep:
            course.ended, course.ended_at = wall, now
        elif course.ended is not None and now - course.ended_at > RESOLVED_SECONDS:
            del self._courses[key]
