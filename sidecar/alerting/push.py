"""Sends alerts directly to Alertmanager (API v2), for sites without Prometheus: the judgements as the rules' alerts."""

import asyncio
import socket
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp

from sidecar.alerting.conditions import Course, Key, Tracker, conditions, load_rules
from sidecar.analysis.report import Report
from sidecar.log import StateLog
from sidecar.settings.groups import Alerting

SOURCE: Final = "sidecar"  # a separate identity, so that these alerts and those of Prometheus do not resolve each other
_ALERTS: Final = "/api/v2/alerts"
_DASHBOARD: Final = "/d/specdec-operator?from=now-6h&to=now"
_LIVES: Final = 4  # an alert that is not sent again expires after this many resend intervals
OUTCOMES: Final = ("accepted", "rejected", "failed")


class Alertmanager:
    """Sends one replica all alerts whenever one changes, and again after every resend interval."""

    def __init__(self, url: str, alerting: Alerting, labels: Mapping[str, str], runbooks: str, log: StateLog) -> None:
        """``labels`` are added to every alert; ``runbooks`` is the URL of the folder with the runbooks."""
        self.name = urlsplit(url).netloc.rpartition("@")[2]  # without credentials
        self._url = url
        self._alerting = alerting
        self._labels = labels
        self._runbooks = runbooks
        self._log = log
        self._accepted: dict[Key, float | None] | None = None  # each alert's end, as last accepted; None if unknown
        self._next = 0.0
        self.sent: Tally[str] = Tally(dict.fromkeys(OUTCOMES, 0))  # alerts, by outcome

    async def send(
        self, session: aiohttp.ClientSession, courses: Mapping[Key, Course], now: float, wall: float
    ) -> None:
        """Sends all alerts at ``now`` (monotonic seconds) if one has changed since the last success, or to resend them.

        The first list may be empty, so that a wrong URL shows before the first alert.
        """
        ends = {key: course.ended for key, course in courses.items()}
        is_news = self._accepted is None or ends.items() - self._accepted.items()
        if not is_news and (now < self._next or not ends):
            return
        alerts = [self._alert(course, wall) for course in courses.values()]
        outcome, reason = await post_alerts(session, self._url, alerts)
        self.sent[outcome] += len(ends)
        if outcome == "accepted":
            self._accepted, self._next = ends, now + self._alerting.resend
            self._log.clear(self.name, "Alertmanager accepts alerts again", alertmanager=self.name)
            return
        self._accepted = None
        self._log.fault(self.name, "Alertmanager did not accept alerts", reason=reason, alertmanager=self.name)

    def _alert(self, course: Course, wall: float) -> dict[str, Any]:
        """One alert as the API expects it, at ``wall``, Unix seconds. It includes its own end."""
        rule, condition = course.rule, course.condition
        labels = {**self._labels, "alertname": rule.name, **rule.labels, **condition.labels}
        annotations = {
            "summary": rule.text(rule.summary, labels, condition.value),
            "description": rule.text(rule.description, labels, condition.value),
            "context": condition.context,
            "runbook_url": f"{self._runbooks}/{rule.name}.md",
        }
        if self._alerting.dashboards:
            variables = {f"var-{name}": value for name, value in {**self._labels, **condition.labels}.items()}
            annotations["dashboard_url"] = f"{self._alerting.dashboards}{_DASHBOARD}&{urlencode(variables)}"
        end = wall + _LIVES * self._alerting.resend if course.ended is None else min(course.ended, wall)
        start = min(course.started or wall, wall, end)  # even if the clock was set back; otherwise it is rejected
        times = {"startsAt": _rfc3339(start), "endsAt": _rfc3339(end)}
        return {"labels": labels, "annotations": annotations, **times}


def alert_session(seconds: float) -> aiohttp.ClientSession:
    """A session for ``post_alerts``; each request may take ``seconds``."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), cookie_jar=aiohttp.DummyCookieJar())


async def post_alerts(
    session: aiohttp.ClientSession, url: str, alerts: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, str]:
    """Sends alerts to the Alertmanager at the base ``url``; returns the outcome (see ``OUTCOMES``) and the reason.

    An empty list tests whether it would accept alerts.
    """
    try:
        async with session.post(url + _ALERTS, json=list(alerts), allow_redirects=False) as response:
            status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return "failed", type(error).__name__
    return ("accepted", "") if status == 200 else ("rejected", f"status {status}")


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class Push:
    """Evaluates the alerts at every interval and sends them to every replica; ``run`` is one supervised task."""

    def __init__(
        self,
        report: Callable[[], Report],
        alerting: Alerting,
        own_page: str,
        log: StateLog,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``own_page`` is the address at which others reach the sidecar.

        ``monotonic`` measures how long conditions hold; ``wall`` gives Unix seconds.
        """
        self._alerting = alerting
        self._report = report
        self._monotonic = monotonic
        self._wall = wall
        self._tracker = Tracker(load_rules(), alerting.pace)
        labels = {**alerting.labels, "instance": alerting.instance or socket.gethostname(), "source": SOURCE}
        runbooks = alerting.runbooks or f"{own_page}/runbooks"
        self._replicas = [Alertmanager(url, alerting, labels, runbooks, log) for url in alerting.alertmanagers]

    async def run(self) -> None:
        """Runs until cancelled. Firing alerts then expire, because nothing sends them again."""
        async with alert_session(self._alerting.timeout) as session:
            while True:
                await self.evaluate(session)
                await asyncio.sleep(self._alerting.interval)

    async def evaluate(self, session: aiohttp.ClientSession) -> None:
        """Evaluates all alerts once and sends them to all replicas at the same time."""
        now, wall = self._monotonic(), self._wall()
        courses = self._tracker.update(conditions(self._report()), now, wall)
        await asyncio.gather(*(replica.send(session, courses, now, wall) for replica in self._replicas))

    @property
    def sent(self) -> dict[tuple[str, str], int]:
        """Alerts so far, by replica (its host and port) and outcome."""
        return {(replica.name, outcome): n for replica in self._replicas for outcome, n in replica.sent.items()}
