"""Sends alerts directly to Alertmanager (API v2), for sites without Prometheus.

It sends the report's alerts under the rules' names, and judges nothing.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from sidecar.alerting.context import context
from sidecar.alerting.courses import Course, Courses
from sidecar.alerting.rule import filled
from sidecar.analysis.alerts import tells
from sidecar.analysis.report import Report
from sidecar.log import StateLog
from sidecar.settings.groups import Alerting
from sidecar.tls import connection_fault, verifying

# A label of these alerts alone, so that they and those of Prometheus do not resolve each other.
SOURCE: Final = "sidecar"
_ALERTS: Final = "/api/v2/alerts"
_DASHBOARD: Final = "/d/specdec-operator?from=now-6h&to=now"
_LASTS_AT_LEAST: Final = 240.0  # seconds that an alert lasts if it is not sent again
_LASTS_INTERVALS: Final = 4  # intervals that it lasts, if that is longer
_SHOWN_CHARACTERS: Final = 120  # of a rejection
_READ_BYTES: Final = 1024  # of a rejection
OUTCOMES: Final = ("accepted", "rejected", "failed")


class Push:
    """Sends the alerts that fire to every replica, at every interval.

    ``run`` is one supervised task. It sends all of them each time, even if there are none, so that
    a wrong URL shows before the first alert. ``sent`` counts them by replica (its address without
    credentials) and outcome.
    """

    def __init__(
        self,
        report: Callable[[], Report],
        alerting: Alerting,
        own_url: str,
        log: StateLog,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``own_url`` is the address at which others reach the sidecar.

        ``monotonic`` measures how long alerts hold; ``wall`` gives Unix seconds.
        """
        self._alerting = alerting
        self._report = report
        self._log = log
        self._own_url = own_url
        self._monotonic = monotonic
        self._wall = wall
        self._courses = Courses(alerting.pace)

        self._labels = {
            **alerting.labels,
            "instance": alerting.instance or socket.gethostname(),
            "source": SOURCE,
        }
        self._runbooks = alerting.runbooks or f"{own_url}/runbooks"
        self._lasts = max(_LASTS_AT_LEAST, _LASTS_INTERVALS * alerting.interval)
        self._replicas = [
            (url.partition("://")[2].rpartition("@")[2], url) for url in alerting.alertmanagers
        ]
        self.sent: Counter[tuple[str, str]] = Counter(
            {(name, kind): 0 for name, _ in self._replicas for kind in OUTCOMES}
        )

    async def run(self) -> None:
        """Runs until cancelled. Firing alerts then expire, because nothing sends them again."""
        async with alert_session(self._alerting) as session:
            while True:
                await self.evaluate(session)
                await asyncio.sleep(self._alerting.interval)

    async def evaluate(self, session: aiohttp.ClientSession) -> None:
        """Takes in the alerts of a report and sends them to all replicas at the same time."""
        wall = self._wall()
        report = self._report()
        courses = self._courses.update(
            report.alerts,
            self._monotonic(),
            wall,
            is_over=partial(tells, report),
            context=partial(context, report),
        )

        alerts = [self._alert(course, wall) for course in courses]
        await asyncio.gather(
            *(self._send(session, name, url, alerts) for name, url in self._replicas)
        )

    async def _send(
        self,
        session: aiohttp.ClientSession,
        name: str,
        url: str,
        alerts: Sequence[Mapping[str, Any]],
    ) -> None:
        outcome, reason = await post_alerts(session, url, alerts)
        self.sent[name, outcome] += len(alerts)
        if outcome == "accepted":
            self._log.clear(name, "Alertmanager accepts alerts again", alertmanager=name)
        else:
            self._log.fault(
                name, "Alertmanager did not accept alerts", reason=reason, alertmanager=name
            )

    def _alert(self, course: Course, wall: float) -> dict[str, Any]:
        """One alert in the API's format, as of ``wall`` (Unix seconds), with the time it ends."""
        alert = course.alert
        rule = course.rule
        labels = {**self._labels, "alertname": rule.name, **rule.labels, **alert.labels}
        details = f"Details: specdec-sidecar report --url {self._own_url}"
        annotations = {
            "summary": filled(rule.summary, labels, alert.value),
            "description": filled(rule.description, labels, alert.value),
            **({"first": rule.first} if rule.first else {}),
            "context": f"{course.context}\n{details}",
            "runbook_url": f"{self._runbooks}/{rule.name}.md",
        }

        if self._alerting.dashboards:
            known = {**self._labels, **alert.labels}
            query = urlencode({f"var-{name}": value for name, value in known.items()})
            annotations["dashboard_url"] = f"{self._alerting.dashboards}{_DASHBOARD}&{query}"

        end = wall + self._lasts if course.ended is None else min(course.ended, wall)
        # Never after the end, even if the clock was set back: Alertmanager would reject that.
        start = min(course.started or wall, wall, end)

        return {
            "labels": labels,
            "annotations": annotations,
            "startsAt": _rfc3339(start),
            "endsAt": _rfc3339(end),
        }


@asynccontextmanager
async def alert_session(alerting: Alerting) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for ``post_alerts``, with the headers and the time-out of the settings."""
    tls = await asyncio.to_thread(verifying)  # it reads the system's certificates
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls),
        headers=alerting.headers,
        timeout=aiohttp.ClientTimeout(total=alerting.timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield session


async def post_alerts(
    session: aiohttp.ClientSession, url: str, alerts: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, str]:
    """Sends alerts to the Alertmanager at the base ``url``; returns the outcome and the reason.

    The outcome is one of ``OUTCOMES``. An empty list tests whether Alertmanager would accept
    alerts. The reason quotes the beginning of a rejection, without the credentials that were sent.
    """
    try:
        async with session.post(
            url + _ALERTS, json=list(alerts), allow_redirects=False
        ) as response:
            status = response.status
            said = b"" if status == 200 else await response.content.read(_READ_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return "failed", connection_fault(error)
    if status == 200:
        return "accepted", ""
    secrets = [*session.headers.values(), URL(url).password or ""]
    return "rejected", _rejection(status, said, secrets)


def _rejection(status: int, said: bytes, secrets: Iterable[str]) -> str:
    """The status, and the beginning of the response's body if that is readable text."""
    text = " ".join(said.decode("utf-8", "replace").split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")

    is_readable = text.isprintable() and not text.startswith("<")
    if not text or not is_readable:
        return f"status {status}"
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"status {status}: {text}"


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
