"""What ``for`` and ``keep_firing_for`` do in Prometheus, for the direct push: which findings fire, and since when."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.alerting.alert import Alert
from sidecar.alerting.look import Finding

Key = tuple[str, frozenset[tuple[str, str]]]  # an alert's name and its finding's labels

_RESOLVED_SECONDS: Final = 900.0  # how long a resolved alert is told of, as Prometheus has it


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert that fires, or did until ``ended``: Unix seconds, None while it fires."""

    key: Key
    alert: Alert
    finding: Finding
    started: float
    ended: float | None


@dataclass(slots=True)
class _Course:
    """One finding over time. ``since`` and ``held`` are in the monotonic clock's seconds, the others Unix seconds."""

    alert: Alert
    finding: Finding
    since: float  # the condition has held without a break
    held: float  # the condition held last
    started: float | None = None  # it fires
    ended: float | None = None
    ended_at: float = 0.0  # the same in the monotonic clock's seconds


class Tracker:
    """Follows findings from look to look; at most ``most`` at one time, ``overflowed`` counts those past that."""

    def __init__(self, pace: float = 1.0, most: int = 1000) -> None:
        """``pace`` multiplies how long conditions have to hold and how long alerts outlast them."""
        self._pace = pace
        self._most = most
        self._courses: dict[Key, _Course] = {}
        self.overflowed = 0

    def update(self, found: Iterable[tuple[Alert, Finding]], now: float, wall: float) -> list[Notice]:
        """Takes in all that holds at ``now`` (monotonic seconds; ``wall``: Unix seconds); gives what is to be told."""
        current = {(alert.name, frozenset(finding.labels.items())): (alert, finding) for alert, finding in found}
        for key in [key for key in self._courses if key not in current]:
            self._fails(key, self._courses[key], now, wall)
        for key, (alert, finding) in current.items():
            self._holds(key, alert, finding, now, wall)
        return [
            Notice(key, course.alert, course.finding, course.started, course.ended)
            for key, course in self._courses.items()
            if course.started is not None
        ]

    def _holds(self, key: Key, alert: Alert, finding: Finding, now: float, wall: float) -> None:
        course = self._courses.get(key)
        if course is None or course.ended is not None:
            if course is None and len(self._courses) >= self._most:
                self.overflowed += 1
                return
            course = self._courses[key] = _Course(alert, finding, now, now)
        course.finding, course.held = finding, now
        if course.started is None and now - course.since >= self._pace * alert.wait:
            course.started = wall

    def _fails(self, key: Key, course: _Course, now: float, wall: float) -> None:
        if course.started is None:
            del self._courses[key]
        elif course.ended is None and now - course.held >= self._pace * course.alert.keep:
            course.ended, course.ended_at = wall, now
        elif course.ended is not None and now - course.ended_at > _RESOLVED_SECONDS:
            del self._courses[key]


def labels_of(notice: Notice, own: Mapping[str, str]) -> dict[str, str]:
    """An alert's labels, its identity; ``own`` are those of the sidecar."""
    return {
        "alertname": notice.alert.name,
        "severity": str(notice.alert.severity),
        **own,
        **notice.finding.labels,
    }
