"""Alerts sent directly to Alertmanager, for sites without Prometheus: the rules over the sidecar's own state."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from sidecar.alerting.alertmanager import Alertmanager, Message, alert_session
from sidecar.alerting.conditions import CONDITIONS, Match, PushThresholds, context, with_hours
from sidecar.alerting.past import Past
from sidecar.alerting.rules import Rule
from sidecar.alerting.tracker import Alert, Tracker
from sidecar.analysis.target_state import TargetReport
from sidecar.log import StateLog

_REFUSED: Final = "SpecDecodePushRefused"
SOURCE = "sidecar"  # a separate identity, so that these alerts and those of Prometheus do not resolve each other


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """``alertmanagers`` are base URLs, which may hold credentials; times are seconds.

    ``labels`` are those of all alerts, ``instance`` among them.
    """

    alertmanagers: tuple[str, ...]
    labels: Mapping[str, str]
    runbooks: str
    rules: Mapping[str, Rule]
    limits: PushThresholds
    interval: float = 15.0
    resend: float = 60.0
    timeout: float = 5.0
    pace: float = 1.0
    per_target: bool = False
    dashboards: str | None = None


class Push:
    """Evaluates the alerts at every interval and sends them to every replica; ``run`` is one supervised task."""

    def __init__(
        self,
        reports: Callable[[], Sequence[TargetReport]],
        options: PushOptions,
        log: StateLog,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``monotonic`` measures how long conditions hold; ``wall`` gives Unix seconds."""
        self.limits = options.limits  # may be replaced between two evaluations
        self._reports = reports
        self._options = options
        self._monotonic = monotonic
        self._wall = wall
        self._conditions = [(options.rules[name], condition) for name, condition in CONDITIONS.items()]
        self._tracker = Tracker(options.pace)
        self._past = Past()
        message = Message(
            labels={**options.labels, "source": SOURCE},
            runbooks=options.runbooks,
            dashboards=options.dashboards,
            resend=options.resend,
        )
        self._replicas = [Alertmanager(url, message, options.interval, log) for url in options.alertmanagers]

    async def run(self) -> None:
        """Runs until cancelled. Alerts that fire then expire, since they are not sent again."""
        async with alert_session(self._options.timeout) as session:
            while True:
                await self.evaluate(session)
                await asyncio.sleep(self._options.interval)

    async def evaluate(self, session: aiohttp.ClientSession) -> None:
        """Evaluates all alerts once and sends them to all replicas at the same time."""
        now, wall = self._monotonic(), self._wall()
        reports = self._reports()
        self._past.observe(reports, now)
        notices = self._tracker.update(self._alerts(reports), now, wall)
        await asyncio.gather(*(replica.send(session, notices, now, wall) for replica in self._replicas))

    @property
    def sent(self) -> dict[tuple[str, str], int]:
        """Alerts so far, by replica (its host and port) and outcome; ``dropped`` are those past the tracker's bound."""
        sent = {(one.name, outcome): count for one in self._replicas for outcome, count in one.sent.items()}
        return sent | {(one.name, "dropped"): self._tracker.overflowed for one in self._replicas}

    def _alerts(self, reports: Iterable[TargetReport]) -> Iterator[Alert]:
        # The other replicas deliver it.
        for replica in self._replicas:
            if replica.is_failing:
                yield Alert(rule=self._options.rules[_REFUSED], match=Match({"alertmanager": replica.name}, 1))
        for report in (with_hours(one, self._past, self.limits) for one in reports):
            scope = {"target": report.name} if self._options.per_target else {}
            for rule, condition in self._conditions:
                for match in condition(report, self.limits):
                    model = match.labels.get("model_name")
                    yield Alert(
                        rule=rule,
                        match=Match({**scope, **match.labels}, match.value),
                        context=context(report, model, self._past, self.limits) if model else "",
                    )
