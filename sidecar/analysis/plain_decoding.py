"""Plain step times by load, measured on a vLLM that does not speculate."""

from dataclasses import dataclass, field

from sidecar.analysis.curve_fit import fit
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.steps import Steps, counted_steps, growth
from sidecar.engine.continuation import Continuation
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot


@dataclass(slots=True)
class _Engine:
    continuation: Continuation = field(default_factory=Continuation)
    totals: EngineSnapshot | None = None  # at the last poll


class PlainDecoding:
    """Collects what every engine decodes from poll to poll; several engines of a model share one curve."""

    def __init__(self) -> None:
        self._engines: dict[EngineKey, _Engine] = {}
        self.periods: dict[str, list[Steps]] = {}  # from poll to poll, by model

    def scraped(self, page: PageSnapshot) -> None:
        """Takes in one poll, in chronological order. Ignores pages of several API servers, which each count steps."""
        if page.process_start is None:
            return
        for engine in page.engines:
            known = self._engines.setdefault(engine.key, _Engine())
            before, after = known.totals, known.continuation.advance(engine).engine
            if before is not None and (found := counted_steps(growth(before, after))) is not None:
                self.periods.setdefault(engine.key.model_name, []).append(found)
            known.totals = after

    @property
    def drafted(self) -> set[str]:
        """The models that speculated."""
        return {model for model, periods in self.periods.items() if any(one.drafts for one in periods)}

    def curves(self) -> dict[str, PlainCurve]:
        """The curves by model, without models that speculated or decoded too little."""
        plain = {model: fit(periods) for model, periods in self.periods.items() if model not in self.drafted}
        return {model: curve for model, curve in plain.items() if curve is not None}
