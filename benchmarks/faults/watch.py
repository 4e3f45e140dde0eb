"""What Prometheus saw of a fault: gaps, resets, and numbers that cannot be right."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.faults.clients import Clients
from benchmarks.faults.rig import INTERVAL, Rig

_DERIVED = (
    "specdec_kv_cache_usage_ratio",
    "specdec_requests_running",
    "specdec_verdict",
    "specdec_attribution_coverage_ratio",
    "specdec_engine_latency_seconds",
)
_SHARES = ("specdec_kv_cache_usage_ratio", "specdec_attribution_coverage_ratio", "specdec_attribution_residual_ratio")
_TOKENS = 60  # more than any request has
Samples = list[tuple[float, float]]  # Unix seconds, value


@dataclass(frozen=True, slots=True)
class Seen:
    """``down`` and ``vllm_down`` are seconds without a page, and with ``specdec_up`` 0."""

    down: float
    vllm_down: float
    resets: int
    requests: float  # by specdec_requests_total
    wrong: list[str] = field(default_factory=list)


async def seen(rig: Rig, begin: float, end: float) -> Seen:
    """From ``begin`` to ``end``, Unix seconds."""
    found: dict[str, list[Samples]] = {}
    names = '{__name__=~"up|specdec_up|' + "|".join({*_DERIVED, *_SHARES}) + '|specdec_[a-z_]+_total",job="sidecar"}'
    for series in await rig.query(f"{names}[{end - begin + 60:.0f}s]"):
        labels, values = series["metric"], series["values"]
        samples = [(at, float(value)) for at, value in values if begin - 2 * INTERVAL <= at <= end]
        if samples:
            found.setdefault(labels["__name__"], []).append(samples)
    up = [at for at, value in found.get("up", [[]])[0] if value == 1]
    counters = {name: all_series for name, all_series in found.items() if name.endswith("_total")}
    return Seen(
        down=max((b - a - INTERVAL for a, b in zip(up, [*up[1:], end], strict=True)), default=end - begin),
        vllm_down=sum(value == 0 for _, value in found.get("specdec_up", [[]])[0]) * INTERVAL,
        resets=max((_resets(samples) for each in counters.values() for samples in each), default=0),
        requests=sum(map(_growth, found.get("specdec_requests_total", []))),
        wrong=[*_too_much(rig, counters, begin), *_stale(rig, found), *_impossible(found)],
    )


def _growth(samples: Samples) -> float:
    """The growth as Prometheus computes it: a fall is a restart at 0."""
    values = [value for _, value in samples]
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def _resets(samples: Samples) -> int:
    return sum(b < a for (_, a), (_, b) in pairwise(samples))


def _too_much(rig: Rig, counters: dict[str, list[Samples]], begin: float) -> Iterable[str]:
    """Growth that the clients did not cause, which a dashboard would show as a spike in the rate."""
    both = [one for one in (rig.clients, rig.direct) if one is not None]
    tokens = sum(_tokens(clients, begin) for clients in both)
    requests = _requests(rig.clients, begin)
    bounds = {
        "specdec_generation_tokens_total": tokens,
        "specdec_engine_draft_tokens_total": 3 * tokens,
        "specdec_draft_tokens_total": 3 * tokens,
        "specdec_accepted_tokens_total": tokens,
        "specdec_requests_total": requests,
        "specdec_request_events_total": requests,
    }
    for name, bound in bounds.items():
        grown = sum(map(_growth, counters.get(name, [])))
        if grown > bound:
            yield f"{name} grew by {grown:.0f}, at most {bound:.0f} are real"


def _tokens(clients: Clients, begin: float) -> int:
    """An upper bound of the tokens generated since a little before: failed requests may have had any number."""
    return sum(one.tokens or _TOKENS for one in clients.ended if one.end > begin - 6 * INTERVAL) + 8 * _TOKENS


def _requests(clients: Clients, begin: float) -> int:
    """An upper bound of the requests that reached us, with those in flight."""
    return sum(one.end > begin - 6 * INTERVAL and one.failure != "refused" for one in clients.ended) + 8


def _stale(rig: Rig, found: dict[str, list[Samples]]) -> Iterable[str]:
    """What was exported of a vLLM that could not be scraped for two intervals, and one for the page's own age."""
    for lost, back in rig.unreachable:
        for name in (*_DERIVED, "specdec_up"):
            late = [
                at
                for samples in found.get(name, ())
                for at, value in samples
                if lost + 3 * INTERVAL < at < back and (name != "specdec_up" or value == 1)
            ]
            if late:
                yield f"{name} {max(late) - lost:.1f} s after vLLM was lost"


def _impossible(found: dict[str, list[Samples]]) -> Iterable[str]:
    for name in _SHARES:
        for samples in found.get(name, ()):
            if any(not 0 <= value <= 1.000001 for _, value in samples):
                yield f"{name} outside 0 to 1"
