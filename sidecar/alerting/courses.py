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

# Critical alerts that can have the same cause: at most one of them fires for a model.
_ONE_CAUSE: Final = frozenset({Alert.COLLAPSED, Alert.LOW, Alert.SLOWER})
_BRIDGED: Final = 360.0  # seconds for which an alert is taken to hold while that is unknown
_RESOLVED: Final = 900.0  # seconds for which a resolved alert is kept, as in Prometheus
_MENDED: Final = 900.0  # seconds after a collapse without warnings on the rate, as in the rules

_Key = tuple[Alert, Severity, str, str]  # an alert's identity: its rule and its labels


@dataclass(slots=True)
class Course:
    """One alert over time. ``context`` is what the status page said when it was last raised."""

    alert: PodAlert
    context: str
    # Monotonic seconds.
    since: float  # since when its condition has held, even while another alert took its place
    raised: float  # when it was last among the alerts that ``_one_page`` passes
    held: float  # when it last held, by what was known or bridged; once it has ended, its end
    # Unix seconds; None until then.
    started: float | None = None  # when it began to fire
    ended: float | None = None

    @property
    def rule(self) -> Rule:
        """What is the same whenever this alert fires."""
        return RULES[self.alert.alert, self.alert.severity]


class Courses:
    """The alerts that hold, fire, or have just ended."""

    def __init__(self, pace: float = 1.0) -> None:
        """``pace`` multiplies how long conditions must hold, and how long alerts outlast them."""
        self._pace = pace
        self._courses: dict[_Key, Course] = {}
        self._since: dict[_Key, float] = {}  # as ``Course.since``

    def update(
        self,
        alerts: Iterable[PodAlert],
        now: float,
        wall: float,
        *,
        is_over: Callable[[PodAlert], bool] = lambda _: True,
        context: Callable[[PodAlert], str] = lambda _: "",
    ) -> list[Course]:
        """Takes in the alerts that hold at ``now``; returns those that fire or have fired.

        ``now`` is in monotonic seconds; ``wall`` is the same moment in Unix seconds. ``is_over``:
        whether it is known that an earlier alert, which is not among ``alerts``, holds no more.
        ``context`` gives an alert's context.
        """
        holding = tuple(alerts)
        raised = _one_page(holding, self._paged(), self._mending(now))
        current = {_key(alert): alert for alert in raised}
        held = {*map(_key, holding), *current}
        self._since = {key: self._since.get(key, now) for key in held}

        for key in self._courses.keys() - current.keys():
            course = self._courses[key]
            is_recent = course.ended is None and now - course.raised < _BRIDGED
            if is_recent and not is_over(course.alert):
                self._hold(course, now, wall)
            else:
                self._lapse(key, course, now, wall)

        for key, alert in current.items():
            known = self._courses.get(key)
            if known is None or known.ended is not None:
                self._courses[key] = Course(alert, "", self._since[key], now, now)
            course = self._courses[key]
            course.alert = alert
            course.context = context(alert)
            course.raised = now
            self._hold(course, now, wall)

        return [course for course in self._courses.values() if course.started is not None]

    def _paged(self) -> dict[str, Alert]:
        """The alert of ``_ONE_CAUSE`` that fires, by model."""
        return {
            course.alert.model_name: course.alert.alert
            for course in self._courses.values()
            if _pages(course.alert) and course.started is not None and course.ended is None
        }

    def _mending(self, now: float) -> set[str]:
        """The models whose collapse fires, or did until recently (``_MENDED``)."""
        return {
            course.alert.model_name
            for course in self._courses.values()
            if course.alert.alert is Alert.COLLAPSED
            and course.started is not None
            and (course.ended is None or now - course.held < self._pace * _MENDED)
        }

    def _hold(self, course: Course, now: float, wall: float) -> None:
        """The alert holds: it fires once it has held for long enough."""
        course.held = now
        if course.started is None and now - course.since >= self._pace * course.rule.wait:
            course.started = wall

    def _lapse(self, key: _Key, course: Course, now: float, wall: float) -> None:
        """The alert does not hold: it ends after a while, and is forgotten later."""
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
    """The alerts, but of those in ``_ONE_CAUSE`` at most one per model.

    It is the one that fires already (``paged``), whatever else becomes known, otherwise the first.
    While a model has collapsed or is ``mending``, nothing warns that its rate is low: it counts as
    low until it is certain that it no longer is.
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
