"""An engine under traffic whose every request has an acceptance rate of its own.

A step's time depends on the load and on the machine's noise; a request gives tokens at its own
rate, begins when another ends, and is gone at the end of its reply. Nothing here is the product's
but the types in which a poll tells it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final

from sidecar.analysis.speed.steps import Steps
from sidecar.settings.baselines import PlainStepTimes

_TOKENS: Final = 3  # per draft
_MEAN_ACCEPTANCE: Final = 0.6
_KINDS: Final = 2000  # of requests, each with an acceptance rate of its own
_LOAD_LASTS: Final = 60.0  # seconds on average, where the load varies
_CONTEXT: Final = 1000.0  # tokens, in which nothing depends here


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """``at_once`` has the fewest and the most requests at a time, ``reply`` their tokens.

    ``acceptance_sd`` is the standard deviation of the acceptance rate between requests. ``noise``
    is that of the logarithm of the step time, which ``lasts`` so many seconds (an
    Ornstein-Uhlenbeck process).
    """

    name: str
    at_once: tuple[int, int]
    reply: float
    acceptance_sd: float = 0.15
    noise: float = 0.0
    lasts: float = 60.0


def step_seconds(running: float) -> float:
    """An engine step with drafts, without noise."""
    return 0.055 + 0.002 * running


def plain_times(scale: float = 1.0) -> PlainStepTimes:
    """Plain steps known exactly, at all loads."""
    return PlainStepTimes(
        running=(1.0, 64.0),
        seconds=(scale * 0.033, scale * 0.110),
        context=_CONTEXT,
        context_seconds=(0.0, 0.0),
    )


@dataclass(slots=True)
class _Request:
    """``length`` is its tokens per step on average, ``spread`` their standard deviation.

    It has decoded for so many ``seconds``, and has so many tokens ``left`` of ``reply``.
    """

    length: float
    spread: float
    left: float
    reply: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Poll:
    """What a poll tells, and what the requests that have finished since the last one had.

    That is the tokens and seconds of each.
    """

    steps: Steps
    finished: Sequence[tuple[float, float]]


@dataclass(slots=True)
class Engine:
    """One pod, polled every ``poll`` seconds; the same ``seed`` gives the same traffic."""

    traffic: Traffic
    seed: int
    poll: float
    _random: Random = field(init=False)
    _noise: float = field(init=False, default=0.0)
    _wanted: int = field(init=False, default=0)
    _requests: list[_Request] = field(init=False, default_factory=list)
    _kinds: Sequence[tuple[float, float]] = field(init=False, default=())

    def __post_init__(self) -> None:
        self._random = Random(f"{self.traffic.name} {self.seed}")
        self._noise = self._random.gauss(0, self.traffic.noise)
        self._wanted = self._random.randint(*self.traffic.at_once)
        self._kinds = _kinds(self.traffic.acceptance_sd)
        self._requests = [self._begun() for _ in range(self._wanted)]
        for request in self._requests:  # they are in their midst
            request.left = request.reply = request.left * self._random.random()

    def polls(self, hours: float) -> Iterator[Poll]:
        """What each poll tells."""
        for _ in range(round(hours * 3600 / self.poll)):
            yield self._polled()

    def _polled(self) -> Poll:
        self._drift()
        running = len(self._requests)
        number = self.poll / (step_seconds(running) * math.exp(self._noise))

        tokens = 0.0
        finished = []
        for slot, request in enumerate(self._requests):
            steps = number
            while (given := self._tokens(request, steps)) >= request.left:
                took = steps * request.left / given
                steps -= took
                tokens += request.left
                finished.append((request.reply, request.seconds + took * self.poll / number))
                request = self._begun()  # noqa: PLW2901 - the next one takes its place
                self._requests[slot] = request
            request.left -= given
            request.seconds += steps * self.poll / number
            tokens += given

        first = len(finished)
        found = Steps(
            seconds=(running * number - first) * self.poll / number,
            decode_steps=running * number - first,
            engine_steps=number,
            tokens=tokens - first,
            first_tokens=float(first),
            draft_tokens=_TOKENS * (running * number - first),
            drafts=running * number - first,
            engine_seconds=self.poll,
            context_tokens=_CONTEXT,
            context_steps=1.0,
        )
        return Poll(found, finished)

    def _drift(self) -> None:
        traffic = self.traffic
        kept = math.exp(-self.poll / traffic.lasts)
        self._noise *= kept
        self._noise += self._random.gauss(0, traffic.noise * math.sqrt(1 - kept**2))

        if self._random.random() < self.poll / _LOAD_LASTS:
            self._wanted = self._random.randint(*traffic.at_once)
        if len(self._requests) > self._wanted:
            self._requests.pop(self._random.randrange(len(self._requests)))
        while len(self._requests) < self._wanted:
            self._requests.append(self._begun())

    def _tokens(self, request: _Request, steps: float) -> float:
        noise = self._random.gauss(0, request.spread * math.sqrt(steps))
        return max(steps * request.length + noise, steps)

    def _begun(self) -> _Request:
        length, spread = self._kinds[int(_KINDS * self._random.random())]
        reply = float(self.traffic.reply)
        return _Request(length, spread, left=reply, reply=reply)


@cache
def _kinds(acceptance_sd: float) -> Sequence[tuple[float, float]]:
    """Tokens per step of each kind of request, and their standard deviation; the same always."""
    random = Random(0)
    mean = _MEAN_ACCEPTANCE
    both = mean * (1 - mean) / acceptance_sd**2 - 1
    rates = [random.betavariate(mean * both, (1 - mean) * both) for _ in range(_KINDS)]
    return [_per_step(rate) for rate in rates]


def _per_step(rate: float) -> tuple[float, float]:
    powers = [rate**place for place in range(_TOKENS + 1)]
    length = sum(powers)
    square = sum((2 * place + 1) * power for place, power in enumerate(powers))
    return length, math.sqrt(square - length**2)
