"""Alerts sent straight to Alertmanager, for sites without Prometheus: the catalogue's conditions over the own state."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import aiohttp

from sidecar.alerting.alert import Alert
from sidecar.alerting.alertmanager import Alertmanager, Message, alert_session
from sidecar.alerting.catalogue import catalogue
from sidecar.alerting.look import Finding, Look
from sidecar.alerting.push_options import PushOptions
from sidecar.alerting.tracker import Tracker
from sidecar.analysis.target_state import TargetReport
from sidecar.log import StateLog

SOURCE = "sidecar"  # its own identity: a resolved alert from Prometheus must not end this one, nor the other way


class Push:
    """Looks at the state now and again and tells every replica; ``run`` is one supervised task."""

    def __init__(
        self,
        reports: Callable[[], Sequence[TargetReport]],
        options: PushOptions,
        log: StateLog,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``monotonic`` measures how long conditions hold; ``wall`` gives Unix seconds."""
        self._reports = reports
        self._options = options
        self._monotonic = monotonic
        self._wall = wall
        self._alerts = [alert for alert in catalogue() if alert.condition is not None]
        self._tracker = Tracker(options.pace)
        message = Message({"source": SOURCE, "instance": options.instance}, options.runbooks, options.resend)
        self._replicas = [Alertmanager(url, message, options.interval, log) for url in options.alertmanagers]

    async def run(self) -> None:
        """Goes on until it is cancelled. What fires then ends by itself, since nobody sends it again."""
        async with alert_session(self._options.timeout) as session:
            while True:
                await self.look(session)
                await asyncio.sleep(self._options.interval)

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Looks once, and tells every replica at the same time."""
        now, wall = self._monotonic(), self._wall()
        notices = self._tracker.update(self._findings(), now, wall)
        await asyncio.gather(*(replica.tell(session, notices, now, wall) for replica in self._replicas))

    @property
    def sent(self) -> dict[tuple[str, str], int]:
        """Alerts so far, by replica (its host and port) and outcome; ``dropped`` are those past the tracker's bound."""
        sent = {(one.name, outcome): count for one in self._replicas for outcome, count in one.sent.items()}
        return sent | {(one.name, "dropped"): self._tracker.overflowed for one in self._replicas}

    def _findings(self) -> Iterator[tuple[Alert, Finding]]:
        options = self._options
        for report in self._reports():
            look = Look(report, options.thresholds, options.baselines, options.window)
            scope = {"target": report.name} if options.per_target else {}
            for alert in self._alerts:
                for finding in alert.condition(look) if alert.condition else ():
                    yield alert, self._placed(finding, scope)

    def _placed(self, finding: Finding, scope: dict[str, str]) -> Finding:
        # The instance is quoted in the descriptions.
        labels = {"instance": self._options.instance, **scope, **finding.labels}
        return Finding(labels, finding.value, finding.readings)
