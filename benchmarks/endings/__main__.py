"""``python -m benchmarks.endings``: false findings on healthy pods, and how soon a fault is named.

Requests arrive by chance (Poisson), and each ends in a loop with the same probability. The pod's
own past is what they are compared with, as the sidecar does with every poll. Nothing else is
simulated, so a day takes half a second. It prints two Markdown tables; with the default number of
days it takes ten minutes of one core, and ``--days`` and ``--faults`` make it shorter.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final, cast

from sidecar.analysis.endings import DAY, Endings
from sidecar.requests.keys import LOOP, Ending, Sampling
from sidecar.requests.messages import FinishedRequest
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import markdown

_WINDOW: Final = 300.0  # seconds, the default of ``window``
_POLL: Final = 15.0  # seconds: requests leave the window in slices of so many
_PAST: Final = 3600.0  # seconds of usual traffic before anything counts
_MIN_REQUESTS: Final = Thresholds().min_requests
_SHARES: Final = (0.005, 0.01, 0.02, 0.05, 0.1)
_REQUESTS: Final = (30, 60, 120, 300, 1000)  # in a window
_FAULT: Final = 0.2  # so many more of all replies loop
_FAULT_REQUESTS: Final = 60
_LONGEST: Final = 1800.0  # seconds for which a fault is waited for


@dataclass(frozen=True, slots=True)
class _Ended:
    """All of a finished request that counts here."""

    ending: Ending
    prompt_tokens: int  # none is like another one
    output_tokens: int = 100
    sampling: Sampling = "greedy"


class _Pod:
    """A pod whose requests arrive and end by chance."""

    def __init__(self, requests: int, share: float, seed: int) -> None:
        """``requests`` are the mean of a window; a ``share`` of them loops."""
        self.share = share
        self.at = 0.0
        self._endings = Endings(_WINDOW, {})
        self._rate = requests / _WINDOW
        self._random = Random(seed)
        self._number = 0
        self._next = self._random.expovariate(self._rate)

    @property
    def is_worse(self) -> bool:
        """Whether there is a finding."""
        report = self._endings.report
        return report is not None and report.is_worse

    def poll(self) -> None:
        """Lets time pass until the next poll."""
        self.at += _POLL
        ended = cast("list[FinishedRequest]", list(self._ended()))
        self._endings.finished(self.at, "0", ended)
        self._endings.mark(self.at)
        self._endings.judge(_MIN_REQUESTS)

    def _ended(self) -> Iterator[_Ended]:
        while self._next <= self.at:
            loops = self._random.random() < self.share
            self._number += 1
            yield _Ended(LOOP if loops else "normal", self._number)
            self._next += self._random.expovariate(self._rate)


def _findings(requests: int, share: float, days: int) -> int:
    """How many findings begin in so many days of pods that are as they always were."""
    found = 0
    for seed in range(days):
        pod = _Pod(requests, share, seed)
        was_worse = False
        while pod.at < _PAST + DAY:
            pod.poll()
            begins = pod.is_worse and not was_worse
            was_worse = pod.is_worse
            if begins and pod.at > _PAST:
                found += 1
    return found


def _seconds_until_named(share: float, seed: int) -> float:
    """How long a fault lasts until it is a finding; at most ``_LONGEST``."""
    pod = _Pod(_FAULT_REQUESTS, share, seed)
    while pod.at < _PAST:
        pod.poll()

    pod.share += _FAULT
    while not pod.is_worse and pod.at < _PAST + _LONGEST:
        pod.poll()
    return pod.at - _PAST


def _false_findings(days: int) -> Iterator[list[str]]:
    """A row for each share of loops."""
    for share in _SHARES:
        counts = [_findings(requests, share, days) for requests in _REQUESTS]
        yield [f"{share:.1%} loop", *(f"{count / days:.2f}" for count in counts)]


def _named(faults: int) -> Iterator[list[str]]:
    """A row for each usual share of loops."""
    for share in _SHARES:
        seconds = sorted(_seconds_until_named(share, seed) for seed in range(faults))
        in_time = sum(one <= _WINDOW for one in seconds) / faults
        slow = seconds[int(0.95 * faults)]
        yield [
            f"{share:.1%}, then {share + _FAULT:.1%}",
            f"{median(seconds):.0f} s",
            f"{slow:.0f} s",
            f"{in_time:.0%}",
        ]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=40, help="of each healthy pod (default: 40)")
    parser.add_argument("--faults", type=int, default=300, help="of each kind (default: 300)")
    arguments = parser.parse_args()

    print(f"False findings a pod-day, over {arguments.days} days each\n")
    header = ["requests a window", *map(str, _REQUESTS)]
    print("\n".join(markdown(header, list(_false_findings(arguments.days)))), flush=True)

    print(f"\nA fault, at {_FAULT_REQUESTS} requests a window, {arguments.faults} times each\n")
    header = ["loops", "median", "95 %", "within five minutes"]
    print("\n".join(markdown(header, list(_named(arguments.faults)))))


if __name__ == "__main__":
    main()
