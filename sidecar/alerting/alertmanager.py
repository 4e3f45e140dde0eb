"""One replica of Alertmanager: what to send it, and how (API v2)."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec

from sidecar.alerting.tracker import Key, Notice
from sidecar.log import StateLog

_ALERTS: Final = "/api/v2/alerts"
_DASHBOARD: Final = "/d/specdec-operator?from=now-6h&to=now"
_MOST_ALERTS: Final = 64  # in one request
_LIVES: Final = 4  # an alert that is not sent again expires after this many resend intervals
_LONGEST_PAUSE: Final = 60.0  # seconds between two attempts while it does not accept alerts
OUTCOMES: Final = ("accepted", "rejected", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What all alerts of this sidecar have in common; ``resend`` is in seconds."""

    labels: Mapping[str, str]
    runbooks: str
    dashboards: str | None
    resend: float

    def body(self, notices: Sequence[Notice], wall: float) -> bytes:
        """The request's body at ``wall``, Unix seconds. Each alert carries its own end."""
        return msgspec.json.encode([self._alert(notice, wall) for notice in notices])

    def _alert(self, notice: Notice, wall: float) -> dict[str, Any]:
        rule, match = notice.alert.rule, notice.alert.match
        labels = {**self.labels, "alertname": rule.name, "severity": rule.severity, **match.labels}
        annotations = {
            "summary": rule.text(rule.summary, labels, match.value),
            "description": rule.text(rule.description, labels, match.value),
            "context": notice.alert.context,
            "runbook_url": f"{self.runbooks}/{rule.name}.md",
        }
        if self.dashboards:
            variables = {f"var-{name}": value for name, value in {**self.labels, **match.labels}.items()}
            annotations["dashboard_url"] = f"{self.dashboards}{_DASHBOARD}&{urlencode(variables)}"
        return {
            "labels": labels,
            "annotations": annotations,
            "startsAt": _rfc3339(notice.started),
            "endsAt": _rfc3339(wall + _LIVES * self.resend if notice.ended is None else notice.ended),
        }


class Alertmanager:
    """Sends one replica what is new, and firing alerts repeatedly; backs off while it accepts none."""

    def __init__(self, url: str, message: Message, interval: float, log: StateLog) -> None:
        """``interval`` is the first pause after a failure, in seconds; it doubles up to a minute."""
        self.name = urlsplit(url).netloc.rpartition("@")[2]  # without credentials
        self._url = url
        self._message = message
        self._interval = interval
        self._log = log
        self._sent: dict[Key, tuple[float | None, float]] = {}  # by alert: the end that was sent, and when
        self._answered = False
        self._failures = 0
        self._next = 0.0
        self.sent: Tally[str] = Tally(dict.fromkeys(OUTCOMES, 0))  # alerts, by outcome

    async def send(
        self, session: aiohttp.ClientSession, notices: Mapping[Key, Notice], now: float, wall: float
    ) -> None:
        """Sends what is due at ``now`` (monotonic seconds), in as few requests as the bound on alerts allows.

        Until the first answer it sends an empty list if nothing is due, so a wrong URL shows before the first alert.
        """
        self._sent = {key: sent for key, sent in self._sent.items() if key in notices}
        if now < self._next:
            return
        due = [key for key, notice in notices.items() if self._is_due(key, notice, now)]
        batches = [due[start : start + _MOST_ALERTS] for start in range(0, len(due), _MOST_ALERTS)]
        if not batches and not self._answered:
            batches = [[]]
        for batch in batches:
            if not await self._post(session, [notices[key] for key in batch], wall):
                self._failures += 1
                self._next = now + min(self._interval * 2 ** min(self._failures - 1, 16), _LONGEST_PAUSE)
                return
            self._sent |= {key: (notices[key].ended, now) for key in batch}
        if batches:
            self._answered = True
            self._failures = 0
            self._log.clear(self.name, "Alertmanager accepts alerts again", alertmanager=self.name)

    @property
    def is_failing(self) -> bool:
        """Whether it refused the last alerts or could not be reached."""
        return self._failures > 0

    def _is_due(self, key: Key, notice: Notice, now: float) -> bool:
        if key not in self._sent:
            return notice.ended is None  # an alert that was never sent need not be resolved
        ended, at = self._sent[key]
        return ended != notice.ended or (notice.ended is None and now - at >= self._message.resend)

    async def _post(self, session: aiohttp.ClientSession, batch: Sequence[Notice], wall: float) -> bool:
        outcome, reason = await post_alerts(session, self._url, self._message.body(batch, wall))
        self.sent[outcome] += len(batch)
        if outcome != "accepted":
            self._log.fault(self.name, "Alertmanager did not accept alerts", reason=reason, alertmanager=self.name)
        return outcome == "accepted"


def alert_session(seconds: float) -> aiohttp.ClientSession:
    """A session for ``post_alerts``; each request may take ``seconds``."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), cookie_jar=aiohttp.DummyCookieJar())


async def post_alerts(session: aiohttp.ClientSession, url: str, body: bytes = b"[]") -> tuple[str, str]:
    """Sends alerts to the Alertmanager at the base ``url``; returns the outcome (see ``OUTCOMES``) and the reason.

    An empty list tests whether it would accept any.
    """
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(url + _ALERTS, data=body, headers=headers, allow_redirects=False) as response:
            status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return "failed", type(error).__name__
    return ("accepted", "") if status == 200 else ("rejected", f"status {status}")


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
