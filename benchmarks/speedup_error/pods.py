"""Pods under traffic, seen through the sidecar's own window of speedups and its own judge."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from benchmarks.speedup_error.traffic import Engine, Traffic, plain_times
from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.speed.plain import plain_token
from sidecar.analysis.speed.scatter import RequestSpread
from sidecar.analysis.speed.speedup import EngineSpeedWindow, Speedup
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.verdict import judge
from sidecar.settings.groups import Thresholds

WINDOW: Final = 300.0  # seconds: ``latency_window`` as it is by default
MINUTE: Final = 60.0
LOSS: Final = 0.9
BEFORE: Final = 1.3  # the speedup that falls to it
FALLS_AT: Final = 3 * 3600.0
SOON: Final = 2400.0  # seconds within which a loss should page
# ``SpecDecodeSlowerThanPlain`` in alerts/alerts.yaml: as many minutes of the last ones
PAGES_AFTER: Final = 11
OF_MINUTES: Final = 25
_ENOUGH: Final = Acceptance(
    seconds=WINDOW, requests=100.0, drafts=3e4, draft_tokens=9e4, accepted_tokens=5e4
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the sidecar says at ``at``, seconds after the start; None: it says nothing."""

    at: float
    speedup: Speedup | None


@dataclass(frozen=True, slots=True)
class Told:
    """When a pod is first said to lose, and when someone is paged for it; seconds, or infinite."""

    negative_at: float = inf
    paged_at: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod for some ``hours``.

    ``scale`` is by how much plain decoding is slower than in ``plain_times``, and from
    ``changes_at`` on, in seconds, ``scale_then``.
    """

    traffic: Traffic
    seed: int
    hours: float
    poll: float = 10.0
    scale: float = 1.0
    changes_at: float = inf
    scale_then: float = 1.0

    def seen(self, every: float = WINDOW) -> Iterator[Seen]:
        """What the sidecar says, ``every`` so many seconds."""
        before = plain_times(self.scale)
        then = plain_times(self.scale_then)
        spread = RequestSpread()
        window = EngineSpeedWindow(WINDOW, spread)
        at = 0.0
        for poll in Engine(self.traffic, self.seed, self.poll).polls(self.hours):
            curve = before if at < self.changes_at else then
            at += self.poll
            plain = plain_token(curve, poll.steps)
            window.add(poll.steps, plain or Withheld.LOAD)
            if plain is not None:
                for tokens, seconds in poll.finished:
                    spread.add(tokens * plain.seconds, seconds)
            window.mark(at, is_compared=True)
            if at % every < self.poll:
                speed = window.read(curve, Withheld.NO_REFERENCE, at)
                yield Seen(at, speed.speedup if speed is not None else None)

    def told(self) -> Told:
        """What the sidecar's own judge, and the count of the alert's rule, make of it.

        It judges at each poll; before ``changes_at`` it may say what it likes.
        """
        negative_at = inf
        minutes: deque[bool] = deque(maxlen=OF_MINUTES)
        for at, verdict in judged(self.seen(self.poll)):
            if self.changes_at < inf and at <= self.changes_at:
                continue

            loses = verdict is Verdict.NET_NEGATIVE
            if loses:
                negative_at = min(negative_at, at)
            if at % MINUTE < self.poll:
                minutes.append(loses)
            if sum(minutes) >= PAGES_AFTER:
                return Told(negative_at, at)
        return Told(negative_at)


def judged(seen: Iterable[Seen]) -> Iterator[tuple[float, Verdict | None]]:
    """When the sidecar says something, and its own judge's verdict by it."""
    judgement = Judgement()
    thresholds = Thresholds()
    for one in seen:
        evidence = Evidence(window=_ENOUGH, speedup=one.speedup)
        judgement = judge(evidence, thresholds, WINDOW, before=judgement)
        yield one.at, judgement.by_speedup


def long_run(traffic: Traffic, seed: int, hours: float = 60.0) -> float:
    """The ratio of plain to actual time over as many hours of this traffic."""
    plain = 0.0
    actual = 0.0
    curve = plain_times()
    for poll in Engine(traffic, -1 - seed, 60.0).polls(hours):
        time = plain_token(curve, poll.steps)
        if time is not None:
            plain += time.seconds * poll.steps.generated
            actual += poll.steps.request_seconds
    return plain / actual
