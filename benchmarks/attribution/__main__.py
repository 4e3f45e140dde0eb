"""What attribution costs: 10,000 requests a minute with 1,000 in flight, in simulated time.

    .venv/bin/python -m benchmarks.attribution

Prints a table; exits with 1 if a bar is missed. The requests and the pages are made up
beforehand, so only the attribution is timed; the clock follows the events.
"""

import gc
import random
import sys
import time
from collections.abc import Iterator

from benchmarks.table import Row, report
from sidecar.analysis.attribution.attributor import Attributor
from sidecar.analysis.request_stats import RequestStats
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.continuation import Totals
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import Outcome, RequestRecord, RequestStart

BUDGET = 0.02  # of a core
LONGEST_POLL = 50  # ms for which the event loop, through which requests may pass, is blocked
SECONDS = 180
RATE = 10_000 / 60  # requests a second
IN_FLIGHT = 1000
STEPS = 40.0  # a second
K = 3
START = 1_000_000.0

Event = RequestStart | RequestRecord | Totals


def traffic(draft_share: float) -> list[tuple[float, Event]]:
    """Events by time: starts, ends, and the counters at every second."""
    rng = random.Random(1)
    life = IN_FLIGHT / RATE
    events: list[tuple[float, Event]] = []
    emitted = [0.0] * (SECONDS + 2)
    accepted_a_second = [0.0] * (SECONDS + 2)
    for number in range(int(RATE * (SECONDS - 1))):
        start = START + number / RATE
        end = start + life * rng.uniform(0.5, 1.5)
        temperature = rng.choice((0.0, 0.2, 0.4, 0.6, 0.8, 1.2, None))
        ratio = 0.9 - 0.4 * (temperature or 0)
        first = start + 0.1
        steps = max(int((end - first) * STEPS), 1)
        accepted = int(steps * draft_share * K * ratio)
        stream = rng.random() < 0.5
        record = RequestRecord(
            id=str(number),
            path="/v1/completions",
            model="m",
            temperature=temperature,
            choices=1,
            stream=stream,
            start=start,
            first_token=first if stream else None,
            end=end,
            outcome=Outcome.COMPLETED,
            completion_tokens=steps + 1 + accepted,
            stream_events=steps + 1 if stream else 0,
        )
        events.append((start, RequestStart(record.id, start)))
        events.append((end, record))
        for second in range(int(first - START), min(int(end - START), SECONDS) + 1):
            inside = min(end, START + second + 1) - max(first, START + second)
            emitted[second] += steps * inside / (end - first)
            accepted_a_second[second] += accepted * inside / (end - first)
    counters = [0.0] * 5
    for second in range(SECONDS):
        now, more = emitted[second], accepted_a_second[second]
        grown = (now * draft_share, now * draft_share * K, more, now + more, STEPS)
        counters = [total + value for total, value in zip(counters, grown, strict=True)]
        names = (
            Counter.DRAFTS,
            Counter.DRAFT_TOKENS,
            Counter.ACCEPTED_TOKENS,
            Counter.GENERATION_TOKENS,
            Counter.STEPS,
        )
        engine = EngineSnapshot(EngineKey("m", "0"), dict(zip(names, counters, strict=True)), (), {}, {}, None)
        events.append((START + second + 1, Totals(engine, restarted=False)))
    return sorted(events, key=lambda event: event[0])


def measure(draft_share: float) -> tuple[float, int, int, float, Attributor]:
    events = traffic(draft_share)
    buckets = TemperatureBuckets()
    attributor, stats, timeline = Attributor(buckets), RequestStats(buckets.labels, 300), Timeline(1800)
    settled = finished = 0
    longest = 0.0
    gc.collect()
    gc.freeze()  # a live program's collector would not walk the traffic made up beforehand
    began = time.process_time()
    for at, event in events:
        if isinstance(event, RequestStart):
            attributor.started(event)
        elif isinstance(event, RequestRecord):
            attributor.finished(event)
            finished += at <= START + SECONDS
        else:
            timeline.append(at, event)
            before = time.process_time()
            for request in attributor.poll(at, [timeline]):
                stats.add(request, at)
                settled += 1
            longest = max(longest, time.process_time() - before)
    spent = time.process_time() - began
    return spent, finished, settled, longest, attributor


def rows() -> Iterator[Row]:
    for name, draft_share in (("every step drafts", 1.0), ("2 of 5 steps draft", 0.4)):
        spent, finished, settled, longest, attributor = measure(draft_share)
        residual = "-" if attributor.residual is None else f"{attributor.residual:.4f}"
        yield Row(
            f"{RATE * 60:,.0f} requests a minute, {IN_FLIGHT:,} in flight, {name}",
            f"{spent / finished * 1e6:.1f} us a request, {settled:,} of {finished:,} settled, residual {residual}",
            spent / SECONDS * 100,
            at_most=BUDGET * 100,
            unit="% of a core",
        )
        yield Row(f"longest poll, {name}", "once a second", longest * 1e3, at_most=LONGEST_POLL, unit="ms")


if __name__ == "__main__":
    sys.exit(report(rows()))
