"""What is known of the models at a good poll, by value: all that judgements follow from.

``gather.py`` makes them from the state, once a poll, and nothing in them changes afterwards. What
is only shown is no part of them: ``build.py`` reads it when a report is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.engine.engine_state import WITHOUT_SPECULATION, Limitation
from sidecar.analysis.evidence import Evidence
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.analysis.split.plugin_state import NoSplit
from sidecar.analysis.split.view import EngineView
from sidecar.engine.engine_key import EngineKey

_NO_EVIDENCE = Evidence()
_UNKNOWN = EngineView()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValues:
    """One engine: what plug-ins say of it, and what it drafts.

    ``is_present``: it was on the last page, and that is fresh. ``speculates``: so it is, and vLLM
    exports the number of its drafts. ``limitations`` is what its page does not tell. ``evidence``
    is what it is judged by; ``speed`` is None unless it speculates.
    """

    key: EngineKey
    plugin: EngineView = _UNKNOWN
    is_present: bool = True
    speculates: bool = True
    limitations: frozenset[Limitation] = frozenset()
    evidence: Evidence = _NO_EVIDENCE
    speed: EngineSpeed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelValues:
    """One model, at ``at``: a good poll's time.

    ``no_split`` says why it has no split; None if it has one. All that follows is current: empty or
    None where it is not known, or not fresh. ``whole`` and ``temperatures`` are what it is judged
    by, over all its engines and at each temperature.
    """

    name: str
    at: float
    engines: tuple[EngineValues, ...]
    no_split: NoSplit | None
    is_fresh: bool = True
    whole: Evidence = _NO_EVIDENCE
    temperatures: Mapping[str, Evidence] = field(default_factory=dict)
    speed: EngineSpeed | None = None  # of all speculating engines together

    @property
    def is_split(self) -> bool:
        """Whether the model is split with the plug-ins' data."""
        return self.no_split is None

    @property
    def is_told(self) -> bool:
        """Whether plug-ins tell of its requests now: it is split, and an engine is on the page."""
        return self.is_split and bool(self.present)

    @property
    def present(self) -> list[EngineValues]:
        """The engines that are on the page."""
        return [engine for engine in self.engines if engine.is_present]

    @property
    def is_plain(self) -> bool:
        """Whether vLLM serves it, and without speculation as far as anybody knows."""
        present = self.present
        return bool(present) and all(engine.limitations & WITHOUT_SPECULATION for engine in present)

    @property
    def speculating(self) -> list[EngineValues]:
        """Those of them that speculate."""
        return [engine for engine in self.engines if engine.speculates]

    def aged(self) -> "ModelValues":
        """The same once the poll is no longer fresh: without what is current."""
        engines = tuple(
            EngineValues(
                key=one.key,
                plugin=one.plugin,
                is_present=False,
                speculates=False,
                limitations=one.limitations,
            )
            for one in self.engines
        )
        return ModelValues(
            name=self.name, at=self.at, engines=engines, no_split=self.no_split, is_fresh=False
        )
