"""What a baseline sees of a vLLM: its pages, and what the plug-in in it counts of its steps."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import structlog

from sidecar.analysis.engine.cache import mean_capacity, sum_caches
from sidecar.analysis.engine.engine_state import EngineState
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.engine.latency import Latency, latency
from sidecar.analysis.engine.request_times import RequestTimes
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.speed.plain import uncertainty
from sidecar.engine.merge import merge
from sidecar.engine.names import Counter, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import StateLog
from sidecar.requests.keys import Ending
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    Message,
    ReportPart,
    StepKey,
    StepTally,
)
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes
from sidecar.settings.groups import Limits
from specdec_tools.plain.law import Block, Miss, Prompts, fit, misses

_DIGITS: Final = 6
_LATE: Final = 2.0  # seconds until what has ended is told: two of the plug-in's periods
_NO_STEPS: Final = StepTally()
_NO_PROMPTS: Final = Prompts()
# Engines with one of these show drafts only if they have drafted.
_TELLING: Final = frozenset({Trait.OVERCOUNTED, Trait.RUST_FRONTEND})


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the measurement, under one kind of traffic: its round and requests at once."""

    number: int
    at_once: int


@dataclass(slots=True)
class _Part:
    """What one model decoded in a slot."""

    prompts: Prompts = _NO_PROMPTS
    pure: StepTally = _NO_STEPS
    mixed: StepTally = _NO_STEPS


class BaselineRun:
    """A sink of pages and of the plug-in's messages.

    It collects each engine's latencies and, from ``begin`` to ``end``, what it did in a slot.
    """

    def __init__(self) -> None:
        self.drafted: set[str] = set()  # the models that speculate
        # Unix seconds of the first and the last page
        self.began = 0.0
        self.until = 0.0
        # the version, and the name of the accelerator, as the plug-in says
        self.vllm = ""
        self.accelerator: str | None = None
        self.machine_load: float | None = None  # see ``PlainStepTimes``

        windows = {"latency_window": inf, "history": inf}  # so that nothing drops out of them
        endless = Settings(limits=Limits(engines=64, models=16)).model_copy(update=windows)
        self._engines = Engines(endless)

        self._log = StateLog(structlog.get_logger("sidecar"))
        self._slot: Slot | None = None
        self._blocks: dict[str, list[Block]] = defaultdict(list)  # of the slots that have ended
        self._parts: dict[str, _Part] = defaultdict(_Part)  # of the present slot, by model
        self._reported = _Reported()

    def begin(self, slot: Slot) -> None:
        """From the last page on, what is decoded belongs to ``slot``."""
        self._slot = slot
        self._parts = defaultdict(_Part)

    def end(self) -> None:
        """The slot ends with the last page."""
        slot = self._slot
        self._slot = None

        for model, part in self._parts.items():
            if slot is None:
                continue
            self._blocks[model].append(
                Block(
                    prompts=part.prompts,
                    pure=_with_context(part.pure),
                    mixed=_with_context(part.mixed),
                    number=slot.number,
                    wanted=slot.at_once,
                )
            )

    @property
    def is_observed(self) -> bool:
        """Whether a plug-in has introduced itself."""
        return self._reported.is_observed

    def receive(self, connection: int, message: Message) -> None:
        """See ``PluginSink``."""
        if isinstance(message, Hello):
            self.vllm = message.vllm or self.vllm
            self.accelerator = message.configuration.accelerator or self.accelerator
            if message.speculation is not None:
                self.drafted.add(message.model or "")
        self._reported.receive(connection, message)

    # The signature is the protocol's.
    def scraped(
        self,
        at: float,
        duration: float,  # noqa: ARG002
        interval: float,  # noqa: ARG002
        page: PageSnapshot,
    ) -> None:
        """See ``ScrapeSink``; ignores the duration and the interval."""
        self.began = self.began or at
        self.until = at
        self._engines.observe(at, page)
        self.drafted |= {
            engine.key.model_name
            for engine in page.engines
            if engine.speculates and engine.traits & _TELLING
        }
        self._reported.mark(at)
        reported = self._reported.take()
        for model, (pure, mixed) in reported.items():
            if self._slot is not None:
                self._parts[model].pure += pure
                self._parts[model].mixed += mixed

        for state in self._engines.states.values():
            if state.seen_at == at and state.grown is not None:
                self._count(state, state.grown)

    def _count(self, state: EngineState, grown: Mapping[Counter, float]) -> None:
        """Takes in how much one engine's counters have grown."""
        model = state.key.model_name
        if grown.get(Counter.DRAFTS):
            self.drafted.add(model)
        if self._slot is not None:
            self._parts[model].prompts += Prompts.of(grown)

    # The signature is the protocol's.
    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; ignores the time of the failure."""
        self._log.fault(
            "vllm", "cannot read vLLM's metrics", reason=error.reason, problem=str(error)
        )

    def latencies(self) -> dict[str, dict[Phase, Latency]]:
        """Each model's latencies, all of its engines together; empty without requests.

        By the requests' own times where a plug-in tells nearly all of them.
        """
        return {
            model: {
                phase: found
                for phase, reading in grown.items()
                if (found := self._own(model, phase, reading) or latency(reading)) is not None
            }
            for model, grown in self._histograms().items()
        }

    def _own(self, model: str, phase: Phase, reading: HistogramReading) -> Latency | None:
        times = self._reported.times.get(model)
        late = _LATE * reading.count / max(self.until - self.began, _LATE)
        return times.latency(phase, reading, late) if times is not None else None

    def _histograms(self) -> Mapping[str, Mapping[Phase, HistogramReading]]:
        """How much each model's histograms have grown, all of its engines together."""
        models: dict[str, list[EngineSnapshot]] = defaultdict(list)
        for key, state in self._engines.states.items():
            models[key.model_name].append(EngineSnapshot(key, {}, (), {}, state.histograms, None))
        return {model: merge(engines).histograms for model, engines in models.items()}

    def caches(self) -> dict[str, dict[str, float]]:
        """The KV cache by model, as in ``PlainCache``.

        Without models that speculated or got no requests.
        """
        models = {key.model_name for key in self._engines.states} - self.drafted
        caches = {model: _plain_cache(self._engines.of(model)) for model in sorted(models)}
        return {
            model: cache
            for model, cache in caches.items()
            if "preemptions_ratio" in cache or "hit_ratio" in cache
        }

    def capacities(self) -> dict[str, dict[str, float]]:
        """What of ``caches`` does not depend on the requests."""
        name = "capacity_tokens"
        return {
            model: {name: cache[name]} for model, cache in self.caches().items() if name in cache
        }

    def endings(self) -> dict[str, dict[float, dict[Ending, int]]]:
        """How outputs ended, by model and temperature, as in ``PlainEndings``.

        Without models that speculated, and empty where no plug-in tells.
        """
        return {
            model: {hundredths / 100: dict(counts) for hundredths, counts in sorted(ended.items())}
            for model, ended in sorted(self._reported.endings.items())
            if model not in self.drafted
        }

    def curves(self) -> dict[str, PlainStepTimes]:
        """Plain step times by model, without models that speculated or decoded too little.

        They are of slots in which a plug-in counted the steps.
        """
        plain = {
            model: fit(blocks, self.machine_load)
            for model, blocks in self._blocks.items()
            if model not in self.drafted
        }
        return {
            model: replace(times, accelerator=self.accelerator)
            for model, times in plain.items()
            if times is not None
        }

    @property
    def error(self) -> float:
        """The largest relative error of the step times so far, in two standard errors."""
        curves = self.curves().values()
        return CONFIDENCE * max((uncertainty(times) for times in curves), default=inf)

    def misses(self, model: str, times: PlainStepTimes) -> list[Miss]:
        """How far a model's step times are from its steps."""
        return misses(self._blocks[model], times)


def _with_context(counted: StepTally) -> StepTally:
    """The steps, if the plug-in tells what their requests held."""
    return counted if counted.context_tokens else _NO_STEPS


class _Reported:
    """The growth of the plug-ins' step counts, by model: without prefill, and with it.

    ``endings`` counts finished requests by model, temperature in hundredths, and ending.
    """

    def __init__(self) -> None:
        self.endings: dict[str, dict[int, dict[Ending, int]]] = {}
        self.times: dict[str, RequestTimes] = {}  # by model
        self._at = 0.0  # the last page's time
        self._models: dict[int, str] = {}  # by connection
        self._latest: dict[tuple[int, StepKey], StepTally] = {}
        self._taken: dict[tuple[int, StepKey], StepTally] = {}

    def receive(self, connection: int, message: Message) -> None:
        """Takes in a plug-in's message."""
        match message:
            case Hello():
                self._models[connection] = message.model or ""
            case ReportPart():
                for key, tally in message.steps:
                    self._latest[connection, key] = tally
                model = self._models.get(connection, "")
                self._end(model, message.finished)
                if self._at:  # what ended before the first page is not in its growth
                    self._times_of(model).add(self._at, message.finished)
            case _:
                pass

    def _times_of(self, model: str) -> RequestTimes:
        times = self.times.get(model)
        if times is None:
            times = self.times[model] = RequestTimes(inf, takes_own=True)
            times.mark(-inf)  # all that it is told is growth
        return times

    def mark(self, at: float) -> None:
        """Notes that a page was read ``at``, in Unix seconds."""
        self._at = at
        for times in self.times.values():
            times.mark(at)

    def _end(self, model: str, finished: Sequence[FinishedRequest]) -> None:
        """Counts how requests end, where the plug-in tells."""
        for request in finished:
            if request.ending is None or request.temperature is None:
                continue
            by_temperature = self.endings.setdefault(model, {})
            counts = by_temperature.setdefault(request.temperature, {})
            counts[request.ending] = counts.get(request.ending, 0) + 1

    @property
    def is_observed(self) -> bool:
        """Whether a plug-in has introduced itself."""
        return bool(self._models)

    def take(self) -> Mapping[str, tuple[StepTally, StepTally]]:
        """What was counted since the last call."""
        grown: dict[str, tuple[StepTally, StepTally]] = {}
        for (connection, key), tally in self._latest.items():
            if not key.decodes:  # the law is of steps in which requests decode
                continue
            growth = tally - self._taken.get((connection, key), _NO_STEPS)
            pure, mixed = grown.get(self._models[connection], (_NO_STEPS, _NO_STEPS))
            both = (pure, mixed + growth) if key.is_mixed else (pure + growth, mixed)
            grown[self._models[connection]] = both

        self._taken = dict(self._latest)
        return grown


def _plain_cache(engines: Sequence[EngineState]) -> dict[str, float]:
    cache = sum_caches(engine.cache for engine in engines)
    found = {
        "hit_ratio": cache.hit_ratio,
        "capacity_tokens": mean_capacity(
            one.latest.kv_cache_capacity_tokens for one in engines if one.latest
        ),
        "preemptions_ratio": cache.preemptions_ratio,
    }
    return {name: round(value, _DIGITS) for name, value in found.items() if value is not None}
