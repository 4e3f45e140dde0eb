"""What a sweep measured: the result that ``sweep --save`` writes and ``compare`` reads."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from pathlib import Path
from random import Random
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, TypeAdapter, ValidationError

from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, sum_windows
from sidecar.commands.arguments import read_input
from sidecar.errors import InputError
from specdec_tools.measuring.client import Sample

_MOST_BYTES: Final = 256 * 1024 * 1024  # a saved sweep


@dataclass(frozen=True, slots=True)
class SweepLevel:
    """Requests at one temperature or at several, ``concurrency`` of them in flight.

    ``mix`` has the temperatures of a mix with their weights. Without ``temperature`` the level is
    the mix; with both, it is those requests of the mix that are at this temperature, alone.
    """

    temperature: float | None
    concurrency: int
    mix: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, concurrency {self.concurrency}"

    @property
    def name(self) -> str:
        """Its temperatures in words."""
        if not self.mix:
            return f"temperature {self.temperature:g}"

        weights = ",".join(f"{temperature:g}:{weight:g}" for temperature, weight in self.mix)
        if self.temperature is None:
            return f"mix {weights}"
        return f"temperature {self.temperature:g} of {weights} alone"

    def requests(self, count: int) -> list[tuple[int, float]]:
        """The number and the temperature of each request.

        A mix has ``count`` of them, each temperature by its weight, in an order that looks random
        and is always the same.
        """
        if not self.mix:
            return [(number, self.temperature or 0.0) for number in range(count)]

        mixed = enumerate(_spread(self.mix, count))
        wanted = self.temperature
        return [(number, at) for number, at in mixed if wanted is None or at == wanted]


def _spread(mix: Sequence[tuple[float, float]], count: int) -> list[float]:
    bounds = list(accumulate(weight for _, weight in mix))
    temperatures = []
    for number in range(count):
        share = (number + 0.5) / count * bounds[-1]
        temperature, _ = mix[bisect_left(bounds, share)]
        temperatures.append(temperature)
    Random(0).shuffle(temperatures)  # noqa: S311 - an order that is the same in each round
    return temperatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One round of a level, or all of them.

    ``samples`` are the completed requests, in the order of their ends. ``seconds`` is the time from
    the first request's start to the last one's end. ``others``: vLLM also served other clients, so
    neither the times nor the growth of the counters are due to these requests alone. The rest is
    from vLLM's page, None if unknown: ``counted`` is how much its speculation counters grew
    meanwhile, ``queries`` how many prompt tokens it looked up in the prefix cache and ``hits`` how
    many it found, both unknown with ``others``, and so are ``preemptions``.
    """

    samples: tuple[Sample, ...]
    failed: int
    seconds: float
    others: bool
    counted: Acceptance | None = None
    queries: float | None = None
    hits: float | None = None
    preemptions: float | None = None
    capacity_tokens: int | None = None  # of the KV cache

    @property
    def tokens(self) -> float | None:
        """Output tokens of all requests; None if a reply does not tell its own."""
        return _total([sample.tokens for sample in self.samples])

    @property
    def acceptance(self) -> Acceptance:
        """From the replies if they have vLLM's numbers, else from its counters.

        Not from the counters if vLLM also served others.
        """
        exact = [sample for sample in self.samples if sample.drafts is not None]
        if not exact:
            known = self.counted if self.samples and not self.others else None
            return replace(known or NO_DRAFTS, requests=len(self.samples))

        by_position = zip_longest(*(sample.positions for sample in exact), fillvalue=0)
        return Acceptance(
            requests=len(exact),
            drafts=sum(sample.drafts or 0 for sample in exact),
            draft_tokens=sum(sample.draft_tokens for sample in exact),
            accepted_tokens=sum(sample.accepted_tokens for sample in exact),
            accepted_per_position=tuple(sum(position) for position in by_position),
        )

    @property
    def source(self) -> Literal["replies", "counters", "none"]:
        """Where ``acceptance`` comes from."""
        if not self.acceptance.draft_tokens:
            return "none"
        has_own = any(sample.drafts is not None for sample in self.samples)
        return "replies" if has_own else "counters"


def _total(parts: Sequence[float | None]) -> float | None:
    return None if None in parts else sum(filter(None, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """One level, round by round."""

    level: SweepLevel
    rounds: Annotated[tuple[Measurement, ...], Field(min_length=1)]

    @property
    def whole(self) -> Measurement:
        """All rounds as one."""
        counted = [part.counted for part in self.rounds if part.counted is not None]
        return Measurement(
            samples=tuple(sample for part in self.rounds for sample in part.samples),
            failed=sum(part.failed for part in self.rounds),
            seconds=sum(part.seconds for part in self.rounds),
            others=any(part.others for part in self.rounds),
            counted=sum_windows(counted) if len(counted) == len(self.rounds) else None,
            queries=_total([part.queries for part in self.rounds]),
            hits=_total([part.hits for part in self.rounds]),
            preemptions=_total([part.preemptions for part in self.rounds]),
            capacity_tokens=self.rounds[-1].capacity_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep sent and measured.

    ``complete`` is False if the sweep was stopped, ran out of time, or a level got no answer at
    all. ``model`` is None if the sweep ended before the server named one. ``fault`` is the last one
    of a request, None if none failed. The fields from ``prompts``, which is a digest, to ``rounds``
    are arguments of ``sweep``: with the same ones, the same requests are sent. ``turns`` is the
    same random text in the sweeps of two servers that took turns, None otherwise; their levels have
    the same numbers of rounds, and rounds of the same number were measured one after the other.
    ``one_machine``: both ran on the same one, so that whatever slows it down meets both.
    """

    format: Literal[7] = 7
    model: str | None
    prompts: str
    requests: int
    endpoint: str
    extra_body: str  # JSON
    max_tokens: int
    rounds: PositiveInt
    complete: bool
    fault: str | None
    turns: str | None = None
    one_machine: bool = False
    levels: tuple[LevelResult, ...]


_FILE: Final = TypeAdapter(SweepResult)


def joined(first: SweepResult, second: SweepResult) -> SweepResult:
    """Two sweeps of a server as one, whose rounds of the same number are one round."""
    others = {level.level: level.rounds for level in second.levels}
    levels = []
    for level in first.levels:
        pairs = zip(level.rounds, others.get(level.level, ()), strict=False)
        rounds = tuple(LevelResult(level=level.level, rounds=pair).whole for pair in pairs)
        if rounds:
            levels.append(LevelResult(level=level.level, rounds=rounds))
    return replace(
        first,
        complete=first.complete and second.complete,
        fault=first.fault or second.fault,
        levels=tuple(levels),
    )


def encode(result: SweepResult) -> bytes:
    """The content of a saved sweep's file."""
    return _FILE.dump_json(result) + b"\n"


def read_saved(path: Path) -> SweepResult:
    """Reads a saved sweep.

    Raises:
        InputError: it cannot be read, is not a saved sweep of this version, or no request was
            answered.
    """
    try:
        result = _FILE.validate_json(read_input(path, _MOST_BYTES))
    except ValidationError:
        raise InputError(f"{path}: not a file that `sweep --save` of this version wrote") from None
    if not any(level.whole.samples for level in result.levels):
        raise InputError(f"{path}: no request was answered in it")
    return result
