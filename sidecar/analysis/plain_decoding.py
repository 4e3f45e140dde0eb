"""Plain step times by load, measured on a vLLM that does not speculate."""

from dataclasses import dataclass, field

from sidecar.analysis.plain_curve import PlainCurve, fit
from sidecar.analysis.steps import Periods, Steps, counted_steps, growth
from sidecar.engine.continuation import Continuation
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot


@dataclass(slots=True)
class _Engine:
    continuation: Continuation = field(default_factory=Continuation)
    totals: tuple[float, EngineSnapshot] | None = None  # at the last poll
    periods: Periods = field(default_factory=Periods)


class PlainDecoding:
    """Collects what every engine decodes from poll to poll; several engines of a model share one curve."""

    def __init__(self) -> None:
        self._engines: dict[EngineKey, _Engine] = {}
        self.periods: dict[str, list[Steps]] = {}  # by model

    def scraped(self, at: float, page: PageSnapshot) -> None:
        """Takes in one poll, in chronological order. Ignores pages of several API servers, which each count steps."""
        if page.process_start is None:
            return
        for engine in page.engines:
            known = self._engines.setdefault(engine.key, _Engine())
            before, after = known.totals, known.continuation.advance(engine).engine
            if before is not None and (found := counted_steps(growth(before[1], after))) is not None:
                self.periods.setdefault(engine.key.model_name, []).extend(known.periods.add(before[0], at, found))
            known.totals = (at, after)

    @property
    def drafted(self) -> set[str]:
        """The models that speculated."""
        return {model for model, periods in self.periods.items() if any(one.drafts for one in periods)}

    def curves(self) -> dict[str, PlainCurve]:
        """The curves by model, without models that speculated or decoded too little."""
        plain = {model: fit(periods) for model, periods in self.periods.items() if model not in self.drafted}
        return {model: curve for model, curve in plain.items() if curve is not None}
