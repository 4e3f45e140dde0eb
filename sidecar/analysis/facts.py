"""What one poll tells of a model, gathered once for the judge, the findings and the report.

It does not change until the next good poll. Whether it is fresh is decided here alone: what is not
has no current values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sidecar.analysis.change import Change
from sidecar.analysis.checklist.traffic import Traffic
from sidecar.analysis.endings import EndingsReport
from sidecar.analysis.engine.engine_state import WITHOUT_SPECULATION, EngineState
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance
from sidecar.analysis.finer import Part
from sidecar.analysis.model_state import ModelState
from sidecar.analysis.overlong import Overlong
from sidecar.analysis.speed.speedup import EngineSpeed, LoadReport
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.plugin_state import NoSplit
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.split.view import EngineView, LivesView
from sidecar.engine import merge
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine: what vLLM's page says of it, and what plug-ins do.

    ``is_present``: it was on the last page, and that is fresh. ``speculation`` is how it drafts, to
    judge by: as a confirmed plug-in says, else according to the settings. ``speed`` is None unless
    it is present and speculates.
    """

    state: EngineState
    plugin: EngineView
    is_present: bool
    speculation: Speculation | None
    speed: EngineSpeed | None

    @property
    def speculates(self) -> bool:
        """Whether it is present and vLLM exports the number of its drafts."""
        return self.is_present and self.state.speculates


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model, at ``at``: a good poll's time.

    ``no_split`` says why it has no split; None if it has one. ``loads`` is since vLLM started.
    All that follows is current: empty or None where it is not known, or not fresh.
    """

    model: ModelState
    at: float
    engines: tuple[EngineFacts, ...]
    no_split: NoSplit | None
    loads: tuple[LoadReport, ...]
    is_fresh: bool = True
    speed: EngineSpeed | None = None  # of all speculating engines together
    speculation: Speculation | None = None  # the engines are configured alike
    # by temperature, each with its share
    windows: Mapping[str, Acceptance] = field(default_factory=dict)
    hours: Mapping[str, Acceptance] = field(default_factory=dict)
    # by table, or between engines, and group
    differences: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    acceptance_p10: float | None = None  # of single requests
    overlong: Overlong | None = None
    own: Acceptance = NO_DRAFTS  # of the requests that this product's own commands sent
    # of the last hour; None if it speculates, or has no split
    traffic: Traffic | None = None
    endings: EndingsReport | None = None  # None if too few requests of the window are known
    change: Change | None = None
    # by temperature, what it has within it, where that differs
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)

    @property
    def is_split(self) -> bool:
        """Whether the model is split with the plug-ins' data."""
        return self.no_split is None

    @property
    def present(self) -> list[EngineFacts]:
        """The engines that are on the page."""
        return [engine for engine in self.engines if engine.is_present]

    @property
    def is_plain(self) -> bool:
        """Whether vLLM serves it, and without speculation as far as anybody knows."""
        present = self.present
        return bool(present) and all(
            engine.state.limitations & WITHOUT_SPECULATION for engine in present
        )

    @property
    def speculating(self) -> list[EngineFacts]:
        """Those of them that speculate."""
        return [engine for engine in self.engines if engine.speculates]

    def aged(self) -> "ModelFacts":
        """The same once the poll is no longer fresh."""
        engines = tuple(replace(one, is_present=False, speed=None) for one in self.engines)
        return ModelFacts(
            model=self.model,
            at=self.at,
            engines=engines,
            no_split=self.no_split,
            loads=self.loads,
            is_fresh=False,
        )


def gather(
    model: ModelState, engines: Engines, lives: LivesView, at: float, thresholds: Thresholds
) -> ModelFacts:
    """The facts on a model at ``at``, the time of the poll that has just been taken in."""
    known = tuple(
        _engine(model, state, lives.engine(state.key), is_present=state.seen_at == at)
        for state in engines.of(model.name)
    )
    facts = ModelFacts(
        model=model,
        at=at,
        engines=known,
        no_split=lives.no_split(model.name),
        loads=model.speed.loads.report(model.speed.curve),
    )
    facts = replace(
        facts,
        speed=_speed(facts),
        speculation=_speculation(facts.speculating),
    )
    if not facts.is_split or not facts.present:
        return facts

    return replace(
        facts,
        windows=model.windows(),
        hours=model.hours(),
        differences=model.groups.differences,
        acceptance_p10=model.acceptance_p10(at, thresholds.min_requests),
        overlong=model.overlong.found(len(facts.present)),
        own=model.own,
        traffic=model.traffic.traffic(thresholds.min_requests) if facts.is_plain else None,
        endings=model.endings.report,
        change=model.changes.report(at),
        parts=model.parts(thresholds.min_requests),
    )


def _engine(
    model: ModelState, state: EngineState, plugin: EngineView, *, is_present: bool
) -> EngineFacts:
    speed = None
    if is_present and state.speculates:
        counts = plugin.has_part and plugin.no_split is None
        known = model.speed.engine(state.key) or _nothing_yet(counts)
        speed = _without_misleading_rate(known, plugin.speculation)

    return EngineFacts(
        state=state,
        plugin=plugin,
        is_present=is_present,
        speculation=plugin.speculation or _assumed(model, state),
        speed=speed,
    )


def _assumed(model: ModelState, state: EngineState) -> Speculation | None:
    """How an engine drafts according to the settings, where no plug-in says it."""
    if model.assumed_method is None:
        return None
    positions = len(state.hour.accepted_per_position)
    return Speculation(model.assumed_method, num_speculative_tokens=positions)


def _speculation(engines: Sequence[EngineFacts]) -> Speculation | None:
    """How the model's engines draft; all of them are configured alike."""
    known = [engine.plugin.speculation for engine in engines]
    known += [engine.speculation for engine in engines]
    return next((speculation for speculation in known if speculation is not None), None)


def _speed(facts: ModelFacts) -> EngineSpeed | None:
    """The speed of all speculating engines together; None if there are none, and for ``other``."""
    model = facts.model
    if not facts.speculating or model.name == merge.OTHER_ENGINES.model_name:
        return None
    speed = model.speed.whole or _nothing_yet(counts=facts.is_split)
    return _without_misleading_rate(speed, _speculation(facts.speculating))


def _nothing_yet(counts: bool) -> EngineSpeed:  # noqa: FBT001 - whether a plug-in does
    """No steps are known."""
    return EngineSpeed(withheld=Withheld.TOO_LITTLE if counts else Withheld.NO_STEPS)


def _without_misleading_rate(speed: EngineSpeed, speculation: Speculation | None) -> EngineSpeed:
    """Removes the break-even acceptance rate if vLLM counts draft tokens that it never verified."""
    is_adaptive = speculation is not None and speculation.adaptive_verification
    return replace(speed, break_even_acceptance=None) if is_adaptive else speed
