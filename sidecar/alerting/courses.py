"""Follows a pod's alerts from report to report: which of them fire, since when, and for how long.

As Prometheus and Alertmanager do with the rules: a condition must hold for a while, the alert
outlasts it, and one cause pages once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidecar.alerting.rule import Rule
from sidecar.alerting.texts import RULES
from sidecar.analysis.pod_alert import Alert, PodAlert, Severity

# The critical alerts that one cause can raise: of a model, one at a time.
_ONE_CAUSE: Final = frozenset({Alert.COLLAPSED, Alert.LOW, Alert.SLOWER})
_BRIDGED: Final = 360.0  # seconds for which an alert holds on if nothing tells that it is over
_RESOLVED: Final = 900.0  # seconds for which a resolved alert is kept, as in Prometheus
_MENDED: Final = 900.0  # seconds without warnings on the rate after a collapse, as in rules

_Key = tuple[Alert, Severity, str, str]  # an alert's identity: its rule and its labels


@dataclass(slots=True)
class Course:
    """One alert over time.

    It fires from ``started`` until ``ended``, Unix seconds; each is None until then. The others are
    in monotonic seconds: ``since`` when it has held, told or not, ``told`` when it was last told,
    and ``held`` when it last held; once it has ended, ``held`` is when it did. ``context`` is what
    the status page said of it when it was last told.
    """

    alert: PodAlert
    context: str
    since: float
    told: float
    held: float
    started: float | None = None
    ended: float | None = None

    @property
    def rule(self) -> Rule:
        """What is the same whenever it fires."""
        return RULES[self.alert.alert, self.alert.severity]


class Courses:
    """The alerts that hold, fire, or have just ended."""

    def __init__(self, pace: float = 1.0) -> None:
        """``pace`` multiplies how long alerts must hold, and how long they outlast that."""
        self._pace = pace
        self._courses: dict[_Key, Course] = {}
        self._since: dict[_Key, float] = {}  # since when each holds, whether it is told or not

    def update(
        self,
        alerts: Iterable[PodAlert],
        now: float,
        wall: float,
        *,
        tells: Callable[[PodAlert], bool] = lambda _: True,
        context: Callable[[PodAlert], str] = lambda _: "",
    ) -> list[Course]:
        """Takes in the alerts that hold at ``now``; returns those that fire or have fired.

        ``now`` is in monotonic seconds; ``wall`` is the same in Unix seconds. ``tells`` says of an
        earlier alert that does not hold whether that is known; ``context`` is what to say of one.
        """
        holding = tuple(alerts)
        told = _one_page(holding, self._paged(), self._mending(now))
        current = {_key(alert): alert for alert in told}
        held = {*map(_key, holding), *current}
        self._since = {key: self._since.get(key, now) for key in held}

        for key in self._courses.keys() - current.keys():
            course = self._courses[key]
            if course.ended is None and now - course.told < _BRIDGED and not tells(course.alert):
                self._holds(course, now, wall)
            else:
                self._fails(key, course, now, wall)

        for key, alert in current.items():
            known = self._courses.get(key)
            if known is None or known.ended is not None:
                self._courses[key] = Course(alert, "", self._since[key], now, now)
            course = self._courses[key]
            course.alert = alert
            course.context = context(alert)
            course.told = now
            self._holds(course, now, wall)

        return [course for course in self._courses.values() if course.started is not None]

    def _paged(self) -> dict[str, Alert]:
        """By model, which of the alerts in ``_ONE_CAUSE`` fires."""
        return {
            course.alert.model_name: course.alert.alert
            for course in self._courses.values()
            if _pages(course.alert) and course.started is not None and course.ended is None
        }

    def _mending(self, now: float) -> set[str]:
        """The models whose collapse pages, or did until shortly ago."""
        return {
            course.alert.model_name
            for course in self._courses.values()
            if course.alert.alert is Alert.COLLAPSED
            and course.started is not None
            and (course.ended is None or now - course.held < self._pace * _MENDED)
        }

    def _holds(self, course: Course, now: float, wall: float) -> None:
        course.held = now
        if course.started is None and now - course.since >= self._pace * course.rule.wait:
            course.started = wall

    def _fails(self, key: _Key, course: Course, now: float, wall: float) -> None:
        if course.started is None or (course.ended is not None and now - course.held > _RESOLVED):
            del self._courses[key]
        elif course.ended is None and now - course.held >= self._pace * course.rule.keep:
            course.ended = wall
            course.held = now


def _key(alert: PodAlert) -> _Key:
    return alert.alert, alert.severity, alert.model_name, alert.temperature


def _pages(alert: PodAlert) -> bool:
    return alert.severity is Severity.CRITICAL and alert.alert in _ONE_CAUSE


def _one_page(
    alerts: Collection[PodAlert], paged: Mapping[str, Alert], mending: set[str]
) -> Iterator[PodAlert]:
    """The alerts, of those that page for one cause one a model: the one that fires, or the first.

    The one that fires stays it, whatever else becomes known. While a model collapses, and while it
    is ``mending``, no warning says that its rate is low: it counts as low until it is certain not
    to be.
    """
    collapsed = {alert.model_name for alert in alerts if alert.alert is Alert.COLLAPSED}
    silenced = {Alert.LOW: collapsed | mending, Alert.LOW_AT_TEMPERATURE: mending}
    chosen = dict(paged)
    for alert in alerts:
        earlier = paged.get(alert.model_name)
        is_low_kept = alert.keeps_page and earlier is Alert.LOW
        if is_low_kept:
            yield replace(alert, severity=Severity.CRITICAL)
        is_silent = is_low_kept or alert.model_name in silenced.get(alert.alert, ())
        if _pages(alert):
            if chosen.setdefault(alert.model_name, alert.alert) is alert.alert:
                yield alert
        elif alert.severity is Severity.INFO or not is_silent:
            yield alert
