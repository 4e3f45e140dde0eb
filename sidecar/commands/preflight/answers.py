"""A checklist of when to use speculation and when to leave it off, answered from the observed traffic.

The limits are rules of thumb (docs/measure.md lists them); only a measurement can decide what they leave open.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

from sidecar.analysis.quantile import interpolated
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.commands.check.vllm_flags import NEWEST, Version, read_version
from sidecar.commands.preflight.watch import Watched
from sidecar.engine.names import Gauge
from sidecar.requests.record import Outcome, RequestRecord

LEAST_REQUESTS: Final = 20
COOL: Final = 0.5  # temperature
HOT: Final = 0.8
SHORT: Final = 20  # output tokens
LONG: Final = 50
LIGHT: Final = 8  # requests running
HEAVY: Final = 32
ROOMY: Final = 0.7  # of the KV cache
FULL: Final = 0.9
QUEUED: Final = 0.1  # share of the polls with requests waiting


RULES: Final = "the limits behind the answers are rules of thumb, listed in docs/measure.md; a sweep measures"


class Answer(StrEnum):
    """What a line recommends."""

    USE = "use it"
    LEAVE = "leave it off"
    OPEN = "open"
    UNKNOWN = "not seen"


@dataclass(frozen=True, slots=True)
class Line:
    """One question, its answer, and what was seen. ``is_blocking``: a reason not to switch speculation on for now."""

    question: str
    answer: Answer
    seen: str
    is_blocking: bool = False


def answers(found: Watched, buckets: TemperatureBuckets, default_temperature: float | None) -> list[Line]:
    """Every line of the list, answered or not; ``default_temperature`` as in the settings."""
    completed = [one for one in found.requests if one.outcome is Outcome.COMPLETED]
    return [
        _temperature(found.requests, buckets, default_temperature),
        _decode_share(completed),
        _output(completed),
        _load(found),
        _queue(found),
        _cache(found),
        _parameters(found),
    ]


def conclusion(found: Watched, lines: Sequence[Line]) -> str:
    """The conclusion from all lines, in one line."""
    if found.speculates:
        return "this vLLM speculates already: `specdec-sidecar run` says whether it pays"
    if len(found.requests) < LEAST_REQUESTS:
        return f"too few requests: {len(found.requests)} seen, at least {LEAST_REQUESTS} needed"
    blocking = [line.question for line in lines if line.is_blocking]
    against = [line.question for line in lines if line.answer is Answer.LEAVE]
    if blocking:
        return f"leave it off as things are; not met: {', '.join(blocking)}"
    if not against and not any(line.answer in {Answer.OPEN, Answer.UNKNOWN} for line in lines):
        return "use it: every condition is met; `specdec-sidecar sweep` measures the gain"
    if len(against) * 2 > len(lines):
        return f"leave it off; not met: {', '.join(against)}"
    speaks = f"; not met: {', '.join(against)}" if against else ""
    return f"undecided: measure it with `specdec-sidecar sweep --baseline-url`{speaks}"


def _temperature(requests: Sequence[RequestRecord], buckets: TemperatureBuckets, default: float | None) -> Line:
    question = "cool sampling"
    counts = Counter(buckets.label(one.temperature) for one in requests)
    given = [default if one.temperature is None else one.temperature for one in requests]
    known = sorted(one for one in given if one is not None and not math.isnan(one))
    if not requests:
        return Line(question, Answer.UNKNOWN, _NO_REQUEST)
    mix = ", ".join(f"{label}: {counts[label] / len(requests):.0%}" for label in buckets.labels if counts[label])
    if not known:
        return Line(question, Answer.UNKNOWN, f"no request specifies its temperature ({mix})")
    cool, hot = (sum(test) / len(known) for test in ([one <= COOL for one in known], [one > HOT for one in known]))
    answer = Answer.USE if cool >= 0.6 else Answer.LEAVE if hot >= 0.6 else Answer.OPEN
    if len(known) < 0.8 * len(requests):
        answer = Answer.OPEN
    seen = f"median {interpolated(known, 0.5):g}; up to {COOL:g}: {cool:.0%}, above {HOT:g}: {hot:.0%} ({mix})"
    return Line(question, answer, seen)


def _decode_share(completed: Sequence[RequestRecord]) -> Line:
    question = "time goes to decoding (TPOT)"
    known = [(one.first_token - one.start, one.end - one.start) for one in completed if one.first_token is not None]
    total = sum(duration for _, duration in known)
    if total <= 0:
        return Line(question, Answer.UNKNOWN, "no stream, and only streams have a time to first token")
    share = 1 - sum(ttft for ttft, _ in known) / total
    answer = Answer.USE if share >= 0.6 else Answer.LEAVE if share < 0.4 else Answer.OPEN
    return Line(question, answer, f"{share:.0%} of the time of {len(known)} streams is after the first token")


def _output(completed: Sequence[RequestRecord]) -> Line:
    question = "long outputs"
    tokens = sorted(one.completion_tokens / one.choices for one in completed if one.completion_tokens is not None)
    prompts = sorted(one.prompt_tokens for one in completed if one.prompt_tokens is not None)
    if not tokens:
        return Line(question, Answer.UNKNOWN, "no reply has usage: streams need stream_options.include_usage")
    median = interpolated(tokens, 0.5)
    answer = Answer.USE if median >= LONG else Answer.LEAVE if median < SHORT else Answer.OPEN
    asked = f"; prompt P50 {interpolated(prompts, 0.5):,.0f}, P95 {interpolated(prompts, 0.95):,.0f}" if prompts else ""
    return Line(question, answer, f"output P50 {median:,.0f} tokens, P95 {interpolated(tokens, 0.95):,.0f}{asked}")


def _load(found: Watched) -> Line:
    question = "light load"
    running = _gauge(found, Gauge.REQUESTS_RUNNING)
    if not running:
        return Line(question, Answer.UNKNOWN, _no_page(found))
    mean = fmean(running)
    answer = Answer.USE if mean <= LIGHT else Answer.LEAVE if mean > HEAVY else Answer.OPEN
    return Line(question, answer, f"{mean:.1f} requests running on average, {max(running):.0f} at most")


def _queue(found: Watched) -> Line:
    question = "no queue"
    waiting = _gauge(found, Gauge.REQUESTS_WAITING)
    if not waiting:
        return Line(question, Answer.UNKNOWN, _no_page(found))
    share = sum(one > 0 for one in waiting) / len(waiting)
    full = share > QUEUED
    return Line(question, Answer.LEAVE if full else Answer.USE, f"requests waited in {share:.0%} of the polls", full)


def _cache(found: Watched) -> Line:
    question = "room in the KV cache"
    usage = _gauge(found, Gauge.KV_CACHE_USAGE)
    if not usage:
        return Line(question, Answer.UNKNOWN, _no_page(found))
    peak = max(usage)
    answer = Answer.USE if peak <= ROOMY else Answer.LEAVE if peak > FULL else Answer.OPEN
    of = "" if found.kv_tokens is None else f" of {found.kv_tokens:,.0f} tokens"
    return Line(question, answer, f"{fmean(usage):.0%}{of} on average, {peak:.0%} at most", peak > FULL)


def _gauge(found: Watched, gauge: Gauge) -> list[float]:
    return [poll[gauge] for poll in found.polls if gauge in poll]


def _no_page(found: Watched) -> str:
    return f"vLLM's page was not read ({found.last_fault})" if found.last_fault else "not on vLLM's page"


def _parameters(found: Watched) -> Line:
    question = "no request that speculation breaks"
    version, said = _version(found)
    if not found.requests:
        return Line(question, Answer.UNKNOWN, _NO_REQUEST)
    counts = Counter(name for one in found.requests for name in one.parameters)
    affected = {name: fate for name in counts if (fate := _fate(name, version)) is not None}
    if not affected:
        named = ", ".join(f"{name}: {_share(counts[name], found)}" for name in counts)
        return Line(question, Answer.USE, f"{f'{named}: honoured' if named else 'nothing affected'} by {said}")
    parts = [f"{name} in {_share(counts[name], found)}: {fate}" for name, fate in affected.items()]
    refused = any(fate == _REFUSED for fate in affected.values())
    return Line(question, Answer.LEAVE if refused else Answer.OPEN, f"{'; '.join(parts)} by {said}", refused)


_NO_REQUEST: Final = "no request"


def _share(count: int, found: Watched) -> str:
    return f"{count / len(found.requests):.0%}"


_REFUSED: Final = "rejected with 400"
_NOT_DRAFTED: Final = "served without speculation"
_IGNORED: Final = "ignored"


def _fate(name: str, version: Version) -> str | None:
    """How vLLM treats a parameter under speculation; None if it honours it.

    0.32's code, and vLLM's pull requests 32003 and 31982 (0.14) and issue 34497 (0.12) for older versions.
    """
    if version >= (0, 14):
        return _REFUSED if name in {"min_p", "logit_bias"} else None
    if name in {"logit_bias", "min_tokens"}:
        return _IGNORED
    return _NOT_DRAFTED


def _version(found: Watched) -> tuple[Version, str]:
    """The version that vLLM reports, else the newest known."""
    version = read_version(found.version or "")
    if version is not None:
        return version, f"vLLM {found.version}"
    return NEWEST, f"vLLM {'.'.join(map(str, NEWEST))} (assumed, as this one does not report its version)"


def lines_of(found: Watched) -> Iterator[str]:
    """The data behind the answers."""
    outcomes = Counter(one.outcome for one in found.requests)
    said = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in Outcome if outcomes[outcome])
    listed = f" ({said})" if said else ""
    yield f"watched for {found.seconds:.0f} s: {len(found.requests)} requests{listed}, {len(found.polls)} pages"
    if found.not_kept:
        yield f"{found.not_kept} further requests are not in these numbers"
    if found.lost:
        yield f"{found.lost} events of requests were lost"
