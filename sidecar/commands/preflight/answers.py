"""A checklist of when to use speculation and when to leave it off, answered from the observed traffic.

The limits are rules of thumb (docs/measure.md lists them); what they leave open, only a measurement can decide.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

from sidecar.analysis.distributions import interpolated
from sidecar.commands.check.vllm_flags import REJECTED
from sidecar.commands.preflight.watch import Watched
from sidecar.engine.names import Gauge
from sidecar.requests.messages import FinishedRequest

LEAST_REQUESTS: Final = 20
_MOST: Final = 0.6  # share of the requests or of the time from which the answer is clear
_COOL: Final = 50  # temperature, hundredths
_HOT: Final = 80
_LONG_PROMPT: Final = 8192  # tokens; drafts are accepted less often after long prompts


class Answer(StrEnum):
    """What a line recommends."""

    USE = "use it"
    LEAVE = "leave it off"
    OPEN = "undecided"


@dataclass(frozen=True, slots=True)
class Line:
    """One condition, the answer, and what was observed.

    ``against`` is the argument against speculation, as a clause; ``is_blocking``: a reason to leave it off for now.
    """

    condition: str
    answer: Answer
    seen: str
    against: str = ""
    is_blocking: bool = False


def answers(found: Watched) -> list[Line]:
    """All lines of the checklist for which there are observations."""
    return [*(_about_requests(found.requests) if found.requests else ()), *_about_load(found)]


def conclusion(found: Watched, lines: Sequence[Line]) -> str:
    """The conclusion from all lines, in one or two sentences."""
    if found.speculates:
        return "This vLLM already speculates: `specdec-sidecar run` shows whether it pays."
    if len(found.requests) < LEAST_REQUESTS:
        return _too_few(found)
    blocking = [line.against for line in lines if line.is_blocking]
    against = [line.against for line in lines if line.answer is Answer.LEAVE]
    if blocking:
        return f"Leave it off for now: {'; '.join(blocking)}."
    if all(line.answer is Answer.USE for line in lines):
        return "Use it: all conditions are met. Measure the speedup with `specdec-sidecar sweep --baseline-url`."
    if len(against) * 2 > len(lines):
        return f"Leave it off: {'; '.join(against)}."
    rest = f" Reasons against it: {'; '.join(against)}." if against else ""
    return f"Undecided: measure it with `specdec-sidecar sweep --baseline-url`.{rest}"


def _too_few(found: Watched) -> str:
    text = f"Too few requests for an answer: saw {len(found.requests)}, need at least {LEAST_REQUESTS}."
    problem = found.problem or next((one.reason for one in found.hellos if one.reason), "")
    if problem:
        return f"{text} The plug-in cannot report them: {problem}."
    if found.hellos:
        return f"{text} Watch longer, with --duration."
    how = "`specdec-sidecar plugin DIR` writes it, and `PYTHONPATH=DIR vllm serve …` loads it"
    return f"{text} No plug-in has connected: {how}."


def _about_requests(requests: Sequence[FinishedRequest]) -> Iterator[Line]:
    temperatures = sorted(one.temperature for one in requests)
    cool, hot = fmean(one <= _COOL for one in temperatures), fmean(one > _HOT for one in temperatures)
    yield Line(
        "low temperatures",
        Answer.USE if cool >= _MOST else Answer.LEAVE if hot >= _MOST else Answer.OPEN,
        f"median {interpolated(temperatures, 0.5) / 100:g}; {cool:.0%} up to 0.5, {hot:.0%} above 0.8",
        f"{hot:.0%} of requests are sampled above a temperature of 0.8",
    )
    yield from _decoding(requests)
    outputs, prompts = (sorted(one.output_tokens for one in requests), sorted(one.prompt_tokens for one in requests))
    median = interpolated(outputs, 0.5)
    yield Line(
        "long outputs",
        _graded(-median, -50, -20),
        _tokens(outputs),
        f"half of the outputs have {median:,.0f} tokens or fewer",
    )
    long = fmean(one > _LONG_PROMPT for one in prompts)
    seen = f"{_tokens(prompts)}; {long:.0%} above {_LONG_PROMPT:,}"
    yield Line("short prompts", _graded(long, 0.1), seen)
    structured = fmean(one.structured for one in requests)
    yield Line("free-form output", _graded(structured, 0.2), f"{structured:.0%} of requests ask for structured output")
    yield _parameters(requests)


def _decoding(requests: Sequence[FinishedRequest]) -> Iterator[Line]:
    times = [(one.arrival, one.first_token, one.last_token) for one in requests]
    known = [(a, b, c) for a, b, c in times if a is not None and b is not None and c is not None and a <= b <= c]
    total = sum(end - arrival for arrival, _, end in known)
    if total > 0:
        share = sum(end - first for _, first, end in known) / total
        seen = f"{len(known)} requests spent {share:.0%} of their time after the first token"
        against = f"requests spend only {share:.0%} of their time after the first token"
        yield Line("time spent decoding", _graded(-share, -_MOST, -0.4), seen, against)


def _parameters(requests: Sequence[FinishedRequest]) -> Line:
    shares = {name: fmean(name in one.parameters for one in requests) for name in REJECTED}
    used = [f"{name} in {share:.0%}" for name, share in shares.items() if share]
    rejected = fmean(any(name in one.parameters for name in REJECTED) for one in requests)
    return Line(
        "supported parameters",
        Answer.LEAVE if used else Answer.USE,
        f"{' and '.join(used)}: rejected with status 400 (vLLM 0.14 and later)" if used else "all supported",
        f"{rejected:.0%} of requests use parameters that speculation rejects",
        bool(used),
    )


def _about_load(found: Watched) -> Iterator[Line]:
    if running := _gauge(found, Gauge.REQUESTS_RUNNING):
        mean = fmean(running)
        seen = f"{mean:.1f} requests running on average, {max(running):.0f} at most"
        yield Line("light load", _graded(mean, 8, 32), seen, f"{mean:.0f} requests run concurrently on average")
    if waiting := _gauge(found, Gauge.REQUESTS_WAITING):
        share = fmean(one > 0 for one in waiting)
        seen = f"requests were waiting {share:.0%} of the time"
        yield Line("no queue", _graded(share, 0.1, 0.1), seen, seen, share > 0.1)
    if usage := _gauge(found, Gauge.KV_CACHE_USAGE):
        peak = max(usage)
        of = "" if found.kv_tokens is None else f" of {found.kv_tokens:,.0f} tokens"
        seen = f"{fmean(usage):.0%}{of} on average, {peak:.0%} at most"
        against = f"the KV cache is up to {peak:.0%} full"
        yield Line("free KV cache", _graded(peak, 0.7, 0.9), seen, against, peak > 0.9)


def _gauge(found: Watched, gauge: Gauge) -> list[float]:
    return [poll[gauge] for poll in found.polls if gauge in poll]


def _graded(value: float, use: float, leave: float = math.inf) -> Answer:
    """For speculation up to ``use``, against it above ``leave``, undecided between the two."""
    return Answer.USE if value <= use else Answer.LEAVE if value > leave else Answer.OPEN


def _tokens(ordered: Sequence[int]) -> str:
    return f"P50 {interpolated(ordered, 0.5):,.0f} tokens, P95 {interpolated(ordered, 0.95):,.0f}"
