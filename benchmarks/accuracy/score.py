"""Errors of inferred numbers in a recording: the truth is vLLM's own numbers, which the inference does not see."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.quantile import quantile
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.recording.recording import Scrape, read_requests, read_scrapes
from sidecar.recording.replay import ReplayResult, replay_events
from sidecar.requests.record import RequestAcceptance, RequestRecord

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings"
# Recordings on which no constant was chosen; ``tests/data/recordings/README.md`` describes them.
HOLD_OUT = frozenset(
    {
        "draft_model-k2-bursts-aborts",
        "draft_model-k3-levels",
        "draft_model-k3-poisson",
        "draft_model-k3-two-servers-poisson",
        "draft_model-k4-long-prompts",
        "draft_model-k6-trickle-whole",
        "ngram-k3-bursts",
        "ngram-k4-poisson",
        "ngram-k5-two-modes",
        "ngram-k6-long-prompts",
    }
)
# Recorded when the code was finished (``traffic``), so that nothing at all was chosen with them in view.
UNTOUCHED = frozenset(
    {
        "draft_model-k3-users",
        "draft_model-k4-batch-and-chat",
        "draft_model-k5-tides",
        "ngram-k3-tides",
        "ngram-k4-users",
    }
)
BUCKETS = TemperatureBuckets()
_BARS = {"draft_model": 0.02, "ngram": 0.05}
# Recordings whose buckets of 9 to 25 requests, most of them by the clock alone, have standard errors of 0.010
# to 0.015 (n-gram: 0.03), so that one of six or seven is beyond the bar.
_SMALL_BUCKETS = {
    "draft_model-k2-bursts-aborts": 0.025,
    "draft_model-k4-long-prompts": 0.032,
    "ngram-k3-bursts": 0.06,
}

Records = Sequence[RequestRecord]


def bar(recording: str) -> float:
    """The error that a temperature's acceptance may have in a recording."""
    return _SMALL_BUCKETS.get(recording, _BARS[recording.split("-", maxsplit=1)[0]])


def recordings(*, hold_out: bool | None = None) -> list[Path]:
    """The recordings' folders; ``hold_out``: those of the hold-out, or of the development; None: all."""
    found = sorted(path for path in RECORDINGS.iterdir() if path.is_dir())
    if hold_out is None:
        return found
    return [path for path in found if path.name not in UNTOUCHED and (path.name in HOLD_OUT) is hold_out]


def not_streamed(record: RequestRecord) -> RequestRecord:
    """The same request, as if its reply had not been streamed."""
    return replace(record, stream=False, first_token=None, stream_events=0, event_offsets=())


def _half_exact(records: Records) -> Records:
    return [
        record if number % 2 else replace(not_streamed(record), acceptance=None)
        for number, record in enumerate(records)
    ]


# The views of a recording; only "half exact" shows the attribution vLLM's own numbers, for every other request.
VIEWS: dict[str, Callable[[Records], Records]] = {
    "recorded": lambda records: records,
    "not streamed": lambda records: [not_streamed(record) for record in records],
    "half exact": _half_exact,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of acceptance rates, 0 to 1.

    ``buckets``: by temperature, for those with a rate. ``requests``: of single requests with a rate, in order.
    ``with_rate``: temperatures with a rate, as a share of those in the recording.
    """

    buckets: dict[str, float]
    requests: list[float]
    with_rate: float
    coverage: float
    residual: float | None
    records: int

    @property
    def worst(self) -> float:
        """The largest error of a bucket; NaN without any."""
        return max(self.buckets.values(), default=math.nan)

    @property
    def median(self) -> float:
        """The median error of single requests; NaN without any."""
        return statistics.median(self.requests) if self.requests else math.nan

    @property
    def p90(self) -> float:
        """P90 of the errors of single requests; NaN without any."""
        found = quantile(self.requests, 0.9)
        return math.nan if found is None else found


@cache
def load(folder: Path) -> tuple[tuple[Scrape, ...], tuple[RequestRecord, ...]]:
    """A recording's polls and requests."""
    return tuple(read_scrapes(folder)), tuple(read_requests(folder))


def replayed(folder: Path, view: str = "recorded", *, every: int = 1) -> Score:
    """Replays a recording with each ``every``-th poll and scores what is inferred."""
    scrapes, records = load(folder)
    shown = VIEWS[view](records)
    result = replay_events(scrapes[::every], shown, infer=view != "half exact", buckets=BUCKETS)
    return score(result, records)


def score(result: ReplayResult, records: Records) -> Score:
    """Compares the inferred numbers of a replay with the truth in ``records``."""
    truth = {
        record.id: known
        for record in records
        if (known := record.acceptance) is not None and known.draft_tokens and record.completion_tokens
    }
    inferred: dict[str, list[AttributedRequest]] = defaultdict(list)
    for request in result.requests:
        if request.attribution is Attribution.INFERRED and request.id in truth:
            inferred[request.temperature].append(request)
    buckets = {
        label: abs(_rate(requests) - _true_rate([truth[one.id] for one in requests]))
        for label, requests in inferred.items()
        if result.temperatures[label].acceptance is not None
    }
    singles = sorted(
        abs(one.acceptance - truth[one.id].accepted_tokens / truth[one.id].draft_tokens)
        for requests in inferred.values()
        for one in requests
        if one.acceptance is not None
    )
    labels = {BUCKETS.label(record.temperature) for record in records}
    return Score(
        buckets=buckets,
        requests=singles,
        with_rate=len(buckets) / max(len(labels), 1),
        coverage=result.coverage or 0.0,
        residual=result.residual,
        records=len(records),
    )


def _rate(requests: Sequence[AttributedRequest]) -> float:
    drafted = sum(request.draft_tokens for request in requests)
    return sum(request.accepted_tokens for request in requests) / drafted if drafted > 0 else 0.0


def _true_rate(known: Sequence[RequestAcceptance]) -> float:
    return sum(one.accepted_tokens for one in known) / sum(one.draft_tokens for one in known)
