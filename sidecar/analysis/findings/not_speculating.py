"""``not_speculating``: an engine that is configured to draft decodes, and drafts nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.report import EngineReport
from sidecar.engine.methods import drafts_with_a_model
from sidecar.requests.messages import Speculation

_ENOUGH_TOKENS: Final = 1000  # decoded without a draft


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSpeculating(Finding):
    """The ``engines`` that generated ``tokens`` without a draft, and no schedule explains it."""

    code: ClassVar[str] = "not_speculating"
    engines: tuple[str, ...]
    tokens: float


def not_speculating(situation: Situation) -> Iterator[NotSpeculating]:
    """The finding on all engines that it is true of."""
    quiet = [engine for engine in situation.model.engines if _should_draft(engine)]
    if not quiet:
        return

    yield NotSpeculating(
        engines=tuple(engine.key.engine for engine in quiet),
        tokens=sum(engine.undrafted_tokens for engine in quiet),
        cost=1.0,
    )


def _should_draft(engine: EngineReport) -> bool:
    """Whether an engine decoded without a draft although a model is loaded to draft."""
    if engine.undrafted_tokens < _ENOUGH_TOKENS or engine.speculation is None:
        return False
    return drafts_with_a_model(engine.speculation.method) and _fewest_tokens(engine.speculation) > 0


def _fewest_tokens(speculation: Speculation) -> int:
    """The smallest number of draft tokens at any load."""
    scheduled = [tokens for *_, tokens in speculation.schedule]
    return min([speculation.num_speculative_tokens, *scheduled])


RULES: Final = (FindingRule(kind=NotSpeculating, gate=not_speculating, place=Place.NO_DRAFTS),)
