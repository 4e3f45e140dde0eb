"""``preflight``: would speculation suit this vLLM's traffic? Answered before it is switched on.

A checklist of when to use speculation and when to leave it off is answered from the observed traffic. The limits are
rules of thumb (docs/measure.md lists them); what they leave open, only a measurement can decide.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Final

import structlog

from sidecar.analysis.distributions import interpolated
from sidecar.commands.arguments import duration
from sidecar.commands.vllm_flags import REJECTED
from sidecar.commands.waiting import first_page, polling, stop_on_signals, stopped
from sidecar.engine.merge import merge
from sidecar.engine.names import Gauge
from sidecar.engine.page_source import page_source
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.requests.messages import FinishedRequest, Hello, Message, ReportPart, Unreadable
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import Settings
from sidecar.wording.numbers import aligned, counted

HELP = "watch a vLLM that does not speculate yet, and say whether speculation suits its traffic"
_UNDECIDED: Final = 3  # exit code
_MOST_REQUESTS: Final = 100_000  # further requests are counted but not kept
_LEAST_REQUESTS: Final = 20
_CLEAR: Final = 0.6  # share of the requests or of the time from which the answer is clear
_COOL: Final = 50  # temperature, hundredths
_HOT: Final = 80
_MUCH: Final = 0.3  # share of hot requests from which the draft's sampling is worth a measurement
_LONG_PROMPT: Final = 8192  # tokens; drafts are accepted less often after long prompts
_MEASURE: Final = "`specdec-sidecar sweep` with and without speculation, then `specdec-sidecar compare`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``preflight``."""
    watch = "watch for this long, or until Ctrl-C (default: 5m)"
    parser.add_argument("--duration", type=duration, default=300.0, metavar="TIME", help=watch)
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints the answers; returns 0, 1 if vLLM already speculates, or 3 if it saw too few requests for an answer.

    Raises:
        MeasurementError: vLLM's first page cannot be read.
    """
    print(f"watching for {arguments.duration:g} s; stop earlier with Ctrl-C", file=sys.stderr)
    traffic = asyncio.run(_watch(settings, arguments.duration))
    lines = [] if traffic.speculates else checklist(traffic)
    lost = f" ({traffic.lost} more not counted)" if traffic.lost else ""
    requests, polls = counted(len(traffic.requests), "request"), counted(len(traffic.polls), "poll")
    seen = f"watched for {traffic.seconds:.0f} s: {requests}{lost}, {polls}"
    if arguments.json:
        content = {
            "conclusion": conclusion(traffic, lines),
            "note": note(traffic),
            "seen": seen,
            "lines": [asdict(line) for line in lines],
        }
        print(json.dumps(content, indent=2, allow_nan=False))
    else:
        if not traffic.speculates:
            rows = [(line.condition, line.answer, line.seen) for line in lines]
            print("\n".join([seen, "", *aligned(("condition", "answer", "observed"), rows, left=(0, 2)), ""]))
            print("The limits are rules of thumb (docs/measure.md); a sweep measures the effect.")
        print("\n".join(filter(None, (conclusion(traffic, lines), note(traffic)))))
    if traffic.speculates:
        return 1
    return _UNDECIDED if len(traffic.requests) < _LEAST_REQUESTS else 0


@dataclass(slots=True, kw_only=True)
class ObservedTraffic:
    """What was observed, a bounded amount of numbers; it is the sink for vLLM's pages and the plug-in's messages.

    ``polls`` are vLLM's gauges, all engines together. ``lost`` counts the requests past the limit. ``problem`` says why
    the plug-in cannot report.
    """

    seconds: float = 0.0
    hellos: list[Hello] = field(default_factory=list)
    requests: list[FinishedRequest] = field(default_factory=list)
    lost: int = 0
    polls: list[Mapping[Gauge, float]] = field(default_factory=list)
    speculates: bool = False
    kv_tokens: float | None = None
    problem: str = ""

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``."""
        engine = merge(page.engines)
        self.polls.append(engine.gauges)
        self.speculates |= engine.speculates
        self.kv_tokens = engine.kv_cache_capacity_tokens

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""

    def receive(self, connection: int, message: Message) -> None:  # noqa: ARG002 - the signature is the sink's
        """See ``PluginSink``."""
        match message:
            case Hello():
                self.hellos = [hello for hello in self.hellos if hello.start != message.start] + [message]
                self.speculates |= message.speculation is not None
            case ReportPart():
                room = _MOST_REQUESTS - len(self.requests)
                self.requests += message.finished[:room]
                self.lost += len(message.finished[room:])
            case Unreadable():
                self.problem = f"it uses another message format ({message.version}); rewrite it with this sidecar"


async def _watch(settings: Settings, seconds: float) -> ObservedTraffic:
    """Watches for ``seconds`` or until a signal stops it; not at all if vLLM already speculates.

    Raises:
        MeasurementError: vLLM's first page cannot be read.
    """
    stop = stop_on_signals()
    traffic = ObservedTraffic()
    clock = asyncio.get_running_loop().time
    begun = clock()
    receiver = PluginReceiver(settings.plugin.socket, traffic.receive, structlog.get_logger("sidecar"))
    async with page_source(settings, settings.limits) as source, receiver:
        traffic.scraped(begun, 0.0, 0.0, await first_page(source, settings.vllm_url))
        if not traffic.speculates:
            async with polling(source, settings, traffic):
                await stopped(stop, seconds)
        traffic.problem = traffic.problem or receiver.problem
    traffic.seconds = clock() - begun
    return traffic


class Recommendation(StrEnum):
    """What a line recommends."""

    USE = "use it"
    LEAVE = "leave it off"
    OPEN = "undecided"


@dataclass(frozen=True, slots=True)
class ChecklistLine:
    """One condition, the answer, and what was observed.

    ``against`` is the argument against speculation, as a clause; ``is_blocking``: a reason to leave it off for now.
    """

    condition: str
    answer: Recommendation
    seen: str
    against: str = ""
    is_blocking: bool = False


def checklist(traffic: ObservedTraffic) -> list[ChecklistLine]:
    """All lines of the checklist for which there are observations."""
    return [*(_about_requests(traffic.requests) if traffic.requests else ()), *_about_load(traffic)]


def conclusion(traffic: ObservedTraffic, lines: Sequence[ChecklistLine]) -> str:
    """The conclusion from all lines, in one or two sentences."""
    if traffic.speculates:
        return "This vLLM already speculates: `specdec-sidecar run` shows whether it pays."
    if len(traffic.requests) < _LEAST_REQUESTS:
        return _too_few(traffic)
    blocking = [line.against for line in lines if line.is_blocking]
    against = [line.against for line in lines if line.answer is Recommendation.LEAVE]
    if blocking:
        return f"Leave it off for now: {'; '.join(blocking)}."
    if all(line.answer is Recommendation.USE for line in lines):
        return f"Use it: all conditions are met. Measure the speedup ({_MEASURE})."
    if len(against) * 2 > len(lines):
        return f"Leave it off: {'; '.join(against)}."
    rest = f" Reasons against it: {'; '.join(against)}." if against else ""
    return f"Undecided: measure it ({_MEASURE}).{rest}"


def note(traffic: ObservedTraffic) -> str:
    """What to try if much of the traffic is hot; empty if it is not."""
    hot = _hot_share(traffic.requests) if traffic.requests else 0.0
    if hot < _MUCH or traffic.speculates:
        return ""
    return (
        f"{hot:.0%} of requests are sampled above a temperature of 0.8. If a model is to draft, also measure "
        '`"draft_sample_method": "probabilistic"`: by default it drafts its likeliest token, which such requests often '
        "reject (docs/why.md)."
    )


def _hot_share(requests: Sequence[FinishedRequest]) -> float:
    return fmean(request.temperature > _HOT for request in requests)


def _too_few(traffic: ObservedTraffic) -> str:
    text = f"Too few requests for an answer: saw {len(traffic.requests)}, need at least {_LEAST_REQUESTS}."
    problem = traffic.problem or next((hello.reason for hello in traffic.hellos if hello.reason), "")
    if problem:
        return f"{text} The plug-in cannot report them: {problem}."
    if traffic.hellos:
        return f"{text} Watch longer, with --duration."
    how = "`specdec-sidecar plugin DIR` writes it, and `PYTHONPATH=DIR vllm serve …` loads it"
    return f"{text} No plug-in has connected: {how}."


def _about_requests(requests: Sequence[FinishedRequest]) -> Iterator[ChecklistLine]:
    temperatures = sorted(request.temperature for request in requests)
    cool = fmean(temperature <= _COOL for temperature in temperatures)
    hot = _hot_share(requests)
    yield ChecklistLine(
        "low temperatures",
        Recommendation.USE if cool >= _CLEAR else Recommendation.LEAVE if hot >= _CLEAR else Recommendation.OPEN,
        f"median {interpolated(temperatures, 0.5) / 100:g}; {cool:.0%} up to 0.5, {hot:.0%} above 0.8",
        f"{hot:.0%} of requests are sampled above a temperature of 0.8",
    )
    yield from _decoding(requests)
    outputs = sorted(request.output_tokens for request in requests)
    median = interpolated(outputs, 0.5)
    against = f"half of the outputs have {median:,.0f} tokens or fewer"
    yield ChecklistLine("long outputs", _graded(-median, -50, -20), _tokens(outputs), against)
    prompts = sorted(request.prompt_tokens for request in requests)
    long = fmean(tokens > _LONG_PROMPT for tokens in prompts)
    yield ChecklistLine("short prompts", _graded(long, 0.1), f"{_tokens(prompts)}; {long:.0%} above {_LONG_PROMPT:,}")
    structured = fmean(request.structured for request in requests)
    yield ChecklistLine(
        "free-form output", _graded(structured, 0.2), f"{structured:.0%} of requests ask for structured output"
    )
    yield _parameters(requests)


def _decoding(requests: Sequence[FinishedRequest]) -> Iterator[ChecklistLine]:
    times = [(request.arrival, request.first_token, request.last_token) for request in requests]
    known = [(a, b, c) for a, b, c in times if a is not None and b is not None and c is not None and a <= b <= c]
    total = sum(end - arrival for arrival, _, end in known)
    if total > 0:
        share = sum(end - first for _, first, end in known) / total
        seen = f"{len(known)} requests spent {share:.0%} of their time after the first token"
        against = f"requests spend only {share:.0%} of their time after the first token"
        yield ChecklistLine("time spent decoding", _graded(-share, -_CLEAR, -0.4), seen, against)


def _parameters(requests: Sequence[FinishedRequest]) -> ChecklistLine:
    shares = {name: fmean(name in request.parameters for request in requests) for name in REJECTED}
    used = [f"{name} in {share:.0%}" for name, share in shares.items() if share]
    rejected = fmean(any(name in request.parameters for name in REJECTED) for request in requests)
    return ChecklistLine(
        "supported parameters",
        Recommendation.LEAVE if used else Recommendation.USE,
        f"{' and '.join(used)}: rejected with status 400 (vLLM 0.14 and later)" if used else "all supported",
        f"{rejected:.0%} of requests use parameters that speculation rejects",
        bool(used),
    )


def _about_load(traffic: ObservedTraffic) -> Iterator[ChecklistLine]:
    if running := _gauge(traffic, Gauge.REQUESTS_RUNNING):
        mean = fmean(running)
        seen = f"{mean:.1f} requests running on average, {max(running):.0f} at most"
        yield ChecklistLine(
            "light load", _graded(mean, 8, 32), seen, f"{mean:.0f} requests run concurrently on average"
        )
    if waiting := _gauge(traffic, Gauge.REQUESTS_WAITING):
        share = fmean(number > 0 for number in waiting)
        seen = f"requests were waiting {share:.0%} of the time"
        yield ChecklistLine("no queue", _graded(share, 0.1, 0.1), seen, seen, share > 0.1)
    if usage := _gauge(traffic, Gauge.KV_CACHE_USAGE):
        peak = max(usage)
        of = "" if traffic.kv_tokens is None else f" of {traffic.kv_tokens:,.0f} tokens"
        seen = f"{fmean(usage):.0%}{of} on average, {peak:.0%} at most"
        against = f"the KV cache is up to {peak:.0%} full"
        yield ChecklistLine("free KV cache", _graded(peak, 0.7, 0.9), seen, against, peak > 0.9)


def _gauge(traffic: ObservedTraffic, gauge: Gauge) -> list[float]:
    return [poll[gauge] for poll in traffic.polls if gauge in poll]


def _graded(value: float, use: float, leave: float = math.inf) -> Recommendation:
    """For speculation up to ``use``, against it above ``leave``, undecided between the two."""
    return Recommendation.USE if value <= use else Recommendation.LEAVE if value > leave else Recommendation.OPEN


def _tokens(ordered: Sequence[int]) -> str:
    return f"P50 {interpolated(ordered, 0.5):,.0f} tokens, P95 {interpolated(ordered, 0.95):,.0f}"
