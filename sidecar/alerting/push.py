"""Sends alerts directly to Alertmanager, for sites without Prometheus: applies the rules to the sidecar's report."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

import aiohttp

from sidecar.alerting.alertmanager import Alertmanager, alert_session
from sidecar.alerting.conditions import Finding, of_models, of_vllm
from sidecar.alerting.rules import load_rules
from sidecar.alerting.tracker import Tracker
from sidecar.analysis.report import Report
from sidecar.analysis.verdict import HELD
from sidecar.log import StateLog
from sidecar.settings import Settings

SOURCE: Final = "sidecar"  # a separate identity, so that these alerts and those of Prometheus do not resolve each other


class Push:
    """Evaluates the alerts at every interval and sends them to every replica; ``run`` is one supervised task."""

    def __init__(
        self,
        report: Callable[[], Report],
        settings: Settings,
        own_page: str,
        log: StateLog,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``own_page`` is the address at which others reach the sidecar.

        ``monotonic`` measures how long conditions hold; ``wall`` gives Unix seconds.
        """
        self.settings = settings  # may be replaced between two evaluations; only thresholds and baselines are read
        alerting = self._alerting = settings.alerting
        self._report = report
        self._monotonic = monotonic
        self._wall = wall
        self._tracker = Tracker(load_rules(), alerting.pace)
        self._of_models: list[Finding] = []  # as of the last good poll
        self._good_at = monotonic()
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
        courses = self._tracker.update(self._findings(now), now, wall)
        await asyncio.gather(*(replica.send(session, courses, now, wall) for replica in self._replicas))

    @property
    def sent(self) -> dict[tuple[str, str], int]:
        """Alerts so far, by replica (its host and port) and outcome."""
        return {(one.name, outcome): count for one in self._replicas for outcome, count in one.sent.items()}

    def _findings(self, now: float) -> Iterator[Finding]:
        report = self._report()
        if report.scrape.up:
            self._of_models, self._good_at = list(of_models(report, self.settings)), now
        elif now - self._good_at > HELD:
            self._of_models = []
        yield from self._of_models
        yield from of_vllm(report)
