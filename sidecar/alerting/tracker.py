"""Does for the direct push what ``for`` and ``keep_firing_for`` do in Prometheus: which alerts fire, and since when."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.alerting.conditions import Condition
from sidecar.alerting.rules import Rule

Key = tuple[str, frozenset[tuple[str, str]]]  # an alert's identity: its rule and its labels

_RESOLVED_SECONDS: Final = 900.0  # how long a resolved alert is kept, as in Prometheus


@dataclass(slots=True)
class Course:
    """One alert over time. It fires from ``started`` until ``ended``, Unix seconds; each is None until then.

    ``since`` and ``held`` are in monotonic seconds: when the condition began to hold, and when it last held; once the
    alert has ended, ``held`` is when it ended.
    """

    rule: Rule
    condition: Condition
    since: float
    held: float
    started: float | None = None
    ended: float | None = None


class Tracker:
    """Follows alerts from evaluation to evaluation."""

    def __init__(self, rules: Mapping[str, Rule], pace: float = 1.0) -> None:
        """``pace`` multiplies how long conditions must hold and how long alerts outlast them."""
        self._rules = rules
        self._pace = pace
        self._courses: dict[Key, Course] = {}

    def update(self, conditions: Iterable[Condition], now: float, wall: float) -> dict[Key, Course]:
        """Takes in the conditions that hold at ``now`` (monotonic seconds; ``wall`` is the same in Unix seconds).

        Returns the alerts that fire or have fired.
        """
        current = {(condition.rule, frozenset(condition.labels.items())): condition for condition in conditions}
        for key in self._courses.keys() - current.keys():
            self._fails(key, self._courses[key], now, wall)
        for key, condition in current.items():
            self._holds(key, condition, now, wall)
        return {key: course for key, course in self._courses.items() if course.started is not None}

    def _holds(self, key: Key, condition: Condition, now: float, wall: float) -> None:
        course = self._courses.get(key)
        if course is None or course.ended is not None:
            course = self._courses[key] = Course(self._rules[condition.rule], condition, now, now)
        course.condition, course.held = condition, now
        if course.started is None and now - course.since >= self._pace * course.rule.wait:
            course.started = wall

    def _fails(self, key: Key, course: Course, now: float, wall: float) -> None:
        if course.started is None or (course.ended is not None and now - course.held > _RESOLVED_SECONDS):
            del self._courses[key]
        elif course.ended is None and now - course.held >= self._pace * course.rule.keep:
            course.ended, course.held = wall, now
