"""``room``: the KV cache is too small for the requests, and the draft takes a part of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.engine.polled_load import waiting_for_capacity
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.engine.methods import drafts_with_a_model, is_mtp
from sidecar.engine.names import Gauge
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import verification
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import count, counted, percent

_CODE: Final = "room"
_PREEMPTED: Final = 0.01  # preemptions per request from which on they matter
# Requests that wait, per running one, from which on they do not just wait for the next step.
_MANY: Final = 0.2
_FULL: Final = 0.9  # usage of the KV cache from which on requests wait for room in it
_TAKEN: Final = 0.05  # share of the KV cache from which on the draft's part matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How many requests of ``tokens`` tokens, their mean, fit into the KV cache of an engine.

    ``plain`` would without speculation, by the baseline.
    """

    tokens: float
    requests: int
    plain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room(Finding):
    """The ``engines`` that are short of room.

    ``less_than_plain`` is how much smaller the KV cache is than the baseline's, a share of that;
    ``share_of_layers`` the draft's share of the layers. At least one is known. ``fitting`` are the
    requests of the window's mean length that fit into one engine's KV cache; None if unknown.
    """

    code: str = field(default=_CODE, init=False)
    engines: tuple[str, ...]
    less_than_plain: float | None
    share_of_layers: float | None
    fitting: Fitting | None = None


def fitting(model: ModelReport) -> Fitting | None:
    """As of the window; None without a baseline, or if the cache or the requests are unknown."""
    plain = model.plain_cache.capacity_tokens if model.plain_cache is not None else None
    capacity = model.kv_cache_capacity_tokens
    tokens = sum_caches(engine.cache for engine in model.engines).request_tokens
    if plain is None or capacity is None or not tokens:
        return None
    return Fitting(tokens=tokens, requests=int(capacity // tokens), plain=int(plain // tokens))


def room(model: ModelReport, thresholds: Thresholds) -> Iterator[Room]:
    """The finding, if requests wait or are preempted and the draft takes a share that matters."""
    pressed = tuple(
        engine.key.engine for engine in model.engines if _is_pressed(engine, thresholds)
    )
    if not pressed:
        return

    less = _less_than_plain(model)
    share = _share_of_layers(model)
    taken = share if less is None else less
    if taken is None or taken < _TAKEN:
        return

    yield Room(engines=pressed, less_than_plain=less, share_of_layers=share, fitting=fitting(model))


def _is_pressed(engine: EngineReport, thresholds: Thresholds) -> bool:
    """Whether an engine that drafts with a model has too little room for its requests.

    It preempts requests, or lets them wait while its KV cache is full.
    """
    if engine.speculation is None or not drafts_with_a_model(engine.speculation.method):
        return False
    if not engine.cache.requests >= thresholds.min_requests:  # nor if that is NaN
        return False

    is_full = (engine.kv_cache_peak or 0.0) >= thresholds.kv_cache_usage
    waits = waiting_for_room(engine) > 0
    preempts = (engine.cache.preemptions_ratio or 0.0) >= _PREEMPTED
    return (is_full and waits) or preempts


def is_short_of_room(model: ModelReport) -> bool:
    """Whether requests of an engine wait for room, or are preempted, whatever it drafts with.

    Each draft token takes a slot of the KV cache, and in state-space models a state of its own
    (vLLM issue 55533), so that fewer requests run.
    """
    return any(
        lets_many_wait(engine) or (engine.cache.preemptions_ratio or 0.0) >= _PREEMPTED
        for engine in model.engines
    )


def lets_many_wait(engine: EngineReport) -> bool:
    """Whether more requests wait for room than those that have just arrived."""
    running = engine.gauges.get(Gauge.REQUESTS_RUNNING, 0.0)
    waiting = waiting_for_room(engine)
    return waiting > 0 and waiting >= _MANY * running and _is_full(engine)


def _is_full(engine: EngineReport) -> bool:
    """Whether the KV cache has no room for one more request of the mean length.

    What has just arrived waits for the next step, and vLLM counts that as for capacity, too.
    """
    usage = engine.gauges.get(Gauge.KV_CACHE_USAGE)
    if usage is None:
        return Gauge.WAITING_FOR_CAPACITY in engine.gauges

    capacity = engine.kv_cache_capacity_tokens
    tokens = engine.cache.request_tokens
    needed = tokens / capacity if tokens and capacity else 0.0
    return usage >= min(_FULL, 1 - needed)


def waiting_for_room(engine: EngineReport) -> float:
    """Requests that wait although vLLM's limit on running ones is not reached.

    It is known as far as the engine tells.
    """
    limit = engine.configuration.max_num_seqs
    running = engine.gauges.get(Gauge.REQUESTS_RUNNING, 0.0)
    if limit is not None and running >= limit:
        return 0.0

    return waiting_for_capacity(engine.gauges)


def _less_than_plain(model: ModelReport) -> float | None:
    """How much smaller an engine's KV cache is than the baseline's; None if unknown."""
    plain = model.plain_cache.capacity_tokens if model.plain_cache is not None else None
    capacity = model.kv_cache_capacity_tokens
    return 1 - capacity / plain if plain and capacity else None


def _share_of_layers(model: ModelReport) -> float | None:
    """The draft's share of the layers, about its share of the KV cache; None if unknown.

    It is unknown for MTP, since vLLM's draft configuration is then the target's with all of its
    layers.
    """
    engine = next(engine for engine in model.engines if engine.speculation is not None)
    speculation = engine.speculation
    if speculation is None or is_mtp(speculation.method):
        return None

    layers = engine.configuration.sizes.get("num_hidden_layers")
    drafting = speculation.draft_sizes.get("num_hidden_layers")
    return drafting / (layers + drafting) if layers and drafting else None


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _room(finding: Room, model: ModelReport) -> Explanation:
    pressed = [engine for engine in model.engines if engine.key.engine in finding.engines]

    return Explanation(
        code=finding.code,
        what=(
            f"Engine {', '.join(finding.engines)} runs out of KV cache: {_pressure(pressed)}."
            f" {_taken(finding)}"
        ),
        remedy=(
            "Raise --gpu-memory-utilization if memory is left, use a smaller draft or method, or"
            " add pods. Compare with a vLLM without the draft at this load to see whether it is"
            " worth the room that it takes."
        ),
        expect=(
            "A preempted request is computed again, and its client waits for that; no acceptance"
            " rate shows it."
        ),
        verify=verification(model),
    )


def _taken(finding: Room) -> str:
    if finding.less_than_plain is not None:
        smaller = f"It is {percent(finding.less_than_plain)} smaller than the baseline's"
        fits = finding.fitting
        if fits is None:
            return f"{smaller}."
        return (
            f"{smaller}: {counted(fits.requests, 'request')} of {count(fits.tokens)} tokens, their"
            f" mean, fit at once; without speculation {count(fits.plain)} would."
        )
    share = percent(finding.share_of_layers or 0.0)
    return f"The draft takes about {share} of it, by its share of the layers."


def _pressure(engines: Sequence[EngineReport]) -> str:
    preempted = sum_caches(engine.cache for engine in engines).preemptions
    waiting = sum(waiting_for_room(engine) for engine in engines)
    seen = [f"{counted(preempted, 'preemption')} in the window"] if preempted > 0 else []
    seen += [f"{counted(waiting, 'request')} waiting for room"] if waiting else []
    return ", ".join(seen)


ROOM: Final = FindingKind(
    code=_CODE,
    gate=room,
    place=Place.COSTS_NO_STEP,
    explain=_room,
    why="the draft takes KV cache that requests need",
    remedy="more GPU memory, or a smaller draft",
    runbook="SpecDecodeKVCachePressure",
)
