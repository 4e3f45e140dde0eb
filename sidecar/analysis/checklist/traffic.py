"""What the requests of the last hour are like, as far as it matters to speculation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.analysis.distributions import quantile
from sidecar.analysis.windows.growth import HOUR
from sidecar.analysis.windows.recent import Recent, relative_bin
from sidecar.analysis.windows.sums import SlidingSums
from sidecar.engine.methods import REJECTED
from sidecar.requests.messages import FinishedRequest
from sidecar.requests.tally import Outcome

COOL: Final = 0.5
"""The highest temperature at which a request is cool."""
HOT: Final = 0.8
"""Above this temperature a request is hot."""
MOST: Final = 0.6
"""From this share on, most of the requests are cool or hot."""
LONG_PROMPT: Final = 8192
"""Prompts of more tokens are long."""
_HALF: Final = 0.5  # of a request's time before its first token, from which on that bounds it
_SHAPED: Final = frozenset({"filtered", "penalties"})


class RequestTrait(StrEnum):
    """What a finished request is like; those that vLLM would reject are counted by parameter."""

    ANY = "any"
    COOL = "cool"
    HOT = "hot"
    LONG_PROMPT = "long_prompt"
    STRUCTURED = "structured"
    SHAPED = "shaped"  # top-k, top-p, min-p or penalties
    UNTOLD = "untold"  # how its tokens are chosen is not known
    TIMED = "timed"  # its times are known
    FIRST_TOKEN = "first_token"  # noqa: S105 - it spent at least half of its time before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests that finished in the last ``seconds``, an hour at most, without failed ones.

    Shares are of ``requests``, 0 to 1, but for ``first_token``, which is of those whose times are
    known; None if too few are. ``shaped`` is None if the plug-in cannot tell it of all requests.
    ``rejected`` is by parameter (``REJECTED``), without those that none used. Quantiles are P50 and
    P95; None without requests.
    """

    requests: int = 0
    seconds: float = 0.0
    cool: float = 0.0
    hot: float = 0.0
    long_prompts: float = 0.0
    structured: float = 0.0
    shaped: float | None = 0.0
    first_token: float | None = None
    rejected: Mapping[str, float] = field(default_factory=dict)
    temperature: float | None = None  # the median
    prompt_tokens: tuple[float, float] | None = None
    output_tokens: tuple[float, float] | None = None


class TrafficWindow:
    """Counts the finished requests of the last hour; bounded whatever the traffic."""

    def __init__(self) -> None:
        self._counts = SlidingSums[str, int](HOUR)
        self._temperatures = Recent(HOUR, relative_bin)  # hundredths
        self._prompts = Recent(HOUR, relative_bin)
        self._outputs = Recent(HOUR, relative_bin)
        self._begun: float | None = None
        self._at = 0.0

    def add(self, at: float, requests: Sequence[FinishedRequest]) -> None:
        """Adds requests that finished before ``at``, a poll's time, without speculation."""
        counted = [one for one in requests if one.outcome is not Outcome.ERROR]
        if not counted:
            return

        self._counts.add(at, Counter(name for one in counted for name in _names(one)))
        temperatures = [one.temperature for one in counted]
        self._temperatures.add(at, [one for one in temperatures if one is not None])
        self._prompts.add(at, [one.prompt_tokens for one in counted])
        outputs = [one.output_tokens for one in counted]
        self._outputs.add(at, [one for one in outputs if one is not None])

    def mark(self, at: float) -> None:
        """Forgets what has left the hour that ends at ``at``, a poll's time."""
        if self._begun is None or at < self._at:  # the clock was set back
            self._begun = at
        self._at = at

        self._counts.drop(at)
        for recent in (self._temperatures, self._prompts, self._outputs):
            recent.drop(at)

    def traffic(self, least: int) -> Traffic:
        """As of the last ``mark``; no share of first tokens if fewer than ``least`` have times."""
        counts = self._counts.sums
        total = counts.get(RequestTrait.ANY, 0)
        seconds = 0.0 if self._begun is None else min(self._at - self._begun, HOUR)
        if not total:
            return Traffic(seconds=seconds)

        timed = counts.get(RequestTrait.TIMED, 0)
        bound = counts.get(RequestTrait.FIRST_TOKEN, 0)
        median = quantile(self._temperatures.ordered(), 0.5)
        return Traffic(
            requests=total,
            seconds=seconds,
            cool=counts.get(RequestTrait.COOL, 0) / total,
            hot=counts.get(RequestTrait.HOT, 0) / total,
            long_prompts=counts.get(RequestTrait.LONG_PROMPT, 0) / total,
            structured=counts.get(RequestTrait.STRUCTURED, 0) / total,
            shaped=None
            if RequestTrait.UNTOLD in counts
            else counts.get(RequestTrait.SHAPED, 0) / total,
            first_token=bound / timed if timed >= least else None,
            rejected={name: counts[name] / total for name in REJECTED if name in counts},
            temperature=None if median is None else median / 100,
            prompt_tokens=_quantiles(self._prompts),
            output_tokens=_quantiles(self._outputs),
        )


def _names(request: FinishedRequest) -> Iterator[str]:
    """What a request counts as."""
    share = _before_first_token(request)
    temperature = request.temperature
    yield RequestTrait.ANY
    if temperature is not None and temperature <= 100 * COOL:
        yield RequestTrait.COOL
    if temperature is not None and temperature > 100 * HOT:
        yield RequestTrait.HOT
    if request.prompt_tokens > LONG_PROMPT:
        yield RequestTrait.LONG_PROMPT
    if request.structured:
        yield RequestTrait.STRUCTURED
    if request.sampling in _SHAPED:
        yield RequestTrait.SHAPED
    if request.sampling is None:
        yield RequestTrait.UNTOLD
    if share is not None:
        yield RequestTrait.TIMED
        if share >= _HALF:
            yield RequestTrait.FIRST_TOKEN
    yield from (name for name in REJECTED if name in request.parameters)


def _before_first_token(request: FinishedRequest) -> float | None:
    """The share of a request's time that passed before its first token; None if unknown."""
    arrival = request.arrival
    first = request.first_token
    last = request.last_token
    if arrival is None or first is None or last is None or not arrival <= first <= last:
        return None
    return (first - arrival) / (last - arrival) if last > arrival else 1.0


def _quantiles(recent: Recent) -> tuple[float, float] | None:
    values = recent.ordered()
    median = quantile(values, 0.5)
    high = quantile(values, 0.95)
    return None if median is None or high is None else (median, high)
