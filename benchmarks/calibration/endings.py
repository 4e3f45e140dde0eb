"""``python -m benchmarks.calibration endings``: how often endings are called worse, and how soon.

Each line is a pod whose replies loop as often as ever, or from a moment on more often, judged at
every poll; ``benchmarks.endings`` has those whose requests know nothing of each other. ``--days``
and ``--faults`` set how many are simulated of each line, ``--only`` some lines; seeds are 0, 1, …
It ends with 1 if a line is on the wrong side of its bar by what was seen.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, cast

from benchmarks.calibration.delays import options, seeds_of
from benchmarks.calibration.rates import in_parallel, most_events
from sidecar.analysis.endings import DAY, Endings
from sidecar.requests.keys import LOOP, Ending, Sampling
from sidecar.requests.messages import FinishedRequest

_POLL: Final = 15.0
_WINDOW: Final = 300.0
_HOUR: Final = 3600.0
_BEFORE: Final = 6 * _HOUR  # seconds of traffic before anything counts
_LONGEST: Final = 1800.0  # seconds for which a fault is waited for
_MIN_REQUESTS: Final = 20
_PAUSE: Final = 5.0  # mean seconds between two replies that are alike
_JOB_BEGINS: Final = 10 * _HOUR  # of each day
_JOB_VARIES: Final = 300.0  # standard deviation of that, in seconds
_PROMPT: Final = 400.0  # median tokens
_OUTPUT: Final = 250.0
_UNEVEN: Final = 0.8  # of their logarithms
_LONGEST_OUTPUT: Final = 1024  # at which a loop is cut off


@dataclass(frozen=True, slots=True)
class Reply:
    """All of a finished request that counts here."""

    ending: Ending
    prompt_tokens: int
    output_tokens: int
    sampling: Sampling = "plain"


@dataclass(frozen=True)
class Pod:
    """A pod's replies: ``requests`` in five minutes, of which a ``share`` loops.

    They come ``alike`` so many times. A ``job`` sends as many again for an hour of each day, of
    which that share loops. From ``breaks_at`` seconds on, a fifth more of all replies loops.
    """

    requests: float
    share: float = 0.02
    alike: int = 1
    job: float = 0.0
    breaks_at: float = math.inf

    def polls(self, seed: int, seconds: float) -> Iterator[Sequence[Reply]]:
        """What has finished by each poll."""
        random = Random(f"endings {seed}")
        arrived: list[list[Reply]] = [[] for _ in range(int(seconds / _POLL))]
        for at, share in self._arrivals(random, seconds):
            reply = _reply(random, share + 0.2 * (at >= self.breaks_at))
            when = at
            for _ in range(self.alike):
                if when < seconds:
                    arrived[int(when / _POLL)].append(reply)
                when += random.expovariate(1 / _PAUSE)
        yield from arrived

    def _arrivals(self, random: Random, seconds: float) -> Iterator[tuple[float, float]]:
        """When each kind of reply first comes, and how many of such loop."""
        mean = _WINDOW * self.alike / self.requests
        at = random.expovariate(1 / mean)
        while at < seconds:
            yield at, self.share
            at += random.expovariate(1 / mean)

        for day in range(math.ceil(seconds / DAY) if self.job else 0):
            at = day * DAY + _JOB_BEGINS + random.gauss(0, _JOB_VARIES)
            end = min(at + _HOUR, seconds)
            while at < end:
                yield at, self.job
                at += random.expovariate(1 / mean)


def _reply(random: Random, share: float) -> Reply:
    loops = random.random() < share
    prompt, output = (
        int(median * math.exp(random.gauss(0, _UNEVEN))) for median in (_PROMPT, _OUTPUT)
    )
    if loops:
        return Reply(LOOP, prompt, _LONGEST_OUTPUT)
    return Reply("normal", prompt, min(output, _LONGEST_OUTPUT))


class _Judged:
    """A pod's endings as the sidecar follows them."""

    def __init__(self) -> None:
        self.at = 1e6
        self._endings = Endings(_WINDOW, {})

    def poll(self, replies: Sequence[Reply]) -> bool:
        """Whether more of them loop than usual, as of the next poll."""
        self.at += _POLL
        self._endings.finished(self.at, "0.7-1", cast("Sequence[FinishedRequest]", replies))
        self._endings.mark(self.at)
        self._endings.judge(_MIN_REQUESTS)
        report = self._endings.report
        return report is not None and report.is_worse


def findings(pod: Pod, days: int, seed: int) -> int:
    """How many begin in so many days."""
    judged = _Judged()
    worse = [judged.poll(replies) for replies in pod.polls(seed, _BEFORE + days * DAY)]
    first = int(_BEFORE / _POLL)
    return sum(worse[at] and not worse[at - 1] for at in range(first, len(worse)))


def seconds_until_named(pod: Pod, seed: int) -> float:
    """From when more replies loop; at most ``_LONGEST``."""
    judged = _Judged()
    for number, replies in enumerate(pod.polls(seed, pod.breaks_at + _LONGEST)):
        since = (number + 1) * _POLL - pod.breaks_at
        if judged.poll(replies) and since > 0:
            return since
    return _LONGEST


def _pods() -> Iterator[Pod]:
    for alike in (1, 5, 20):
        for requests in (60, 300):
            for share in (0.01, 0.02, 0.05):
                yield Pod(requests, share, alike)
    for requests in (60, 300):
        yield Pod(requests, 0.01, job=0.4)


def _name(pod: Pod) -> str:
    alike = f", {pod.alike} alike" if pod.alike > 1 else ""
    job = f", and a job of which {pod.job:.0%} do" if pod.job else ""
    return f"{pod.requests:g} requests{alike}: {pod.share:.0%} loop{job}"


def main(argv: Sequence[str]) -> int:
    """Prints the tables; returns 1 if a line misses its bar."""
    arguments = options("endings", argv, days=10, falls=100, of="faults")

    begun = time.monotonic()
    missed = 0
    print("| nothing changes | findings a day | at most (95 %) |\n|---|---|---|", flush=True)
    days = arguments.days
    for pod in _pods() if days else ():
        if arguments.only not in _name(pod):
            continue
        # one pod, since a job is known from the day before
        found = findings(pod, days, arguments.seed)
        said = "≤ 0.1" if found <= 0.1 * days else "> 0.1 **missed**"
        missed += "missed" in said
        bound = most_events(found) / days
        print(f"| {_name(pod)} | {found / days:.2f} {said} | {bound:.2f} |", flush=True)

    header = "| a fifth more loop | median | 95 % | within five minutes |"
    print(f"\n{header}\n|---|---|---|---|", flush=True)
    for requests, alike in ((60, 1), (60, 5), (300, 5)) if arguments.faults else ():
        for share in (0.01, 0.05):
            pod = Pod(requests, share, alike, breaks_at=_HOUR)
            if arguments.only not in _name(pod):
                continue
            work = partial(seconds_until_named, pod)
            seeds = seeds_of(arguments, arguments.faults)
            times = sorted(in_parallel(work, seeds, arguments.processes))
            middle, nearly = (times[int(part * (len(times) - 1))] for part in (0.5, 0.95))
            in_time = sum(one <= _WINDOW for one in times) / len(times)
            print(f"| {_name(pod)} | {middle:.0f} s | {nearly:.0f} s | {in_time:.0%} |", flush=True)

    print(f"\n{time.monotonic() - begun:.0f} s")
    return 1 if missed else 0
