"""Sends alerts directly to Alertmanager, for sites without Prometheus: the report's judgements as the rules' alerts."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from sidecar.alerting.alertmanager import Alertmanager, alert_session
from sidecar.alerting.conditions import Tracker, conditions, load_rules
from sidecar.analysis.report import Report
from sidecar.log import StateLog
from sidecar.settings.groups import Alerting

SOURCE: Final = "sidecar"  # a separate identity, so that these alerts and those of Prometheus do not resolve each other


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
