"""``not_speculating``: an engine that is configured to draft decodes, and drafts nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.engine.methods import drafts_with_a_model
from sidecar.findings.explanation import Explanation, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import AFTER_A_RESTART
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds

_CODE: Final = "not_speculating"
_ENOUGH_TOKENS: Final = 1000  # decoded without a draft


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSpeculating(Finding):
    """The ``engines`` that generated ``tokens`` without a draft, and no schedule explains it."""

    code: str = field(default=_CODE, init=False)
    engines: tuple[str, ...]
    tokens: float


def not_speculating(model: ModelReport, _: Thresholds) -> Iterator[NotSpeculating]:
    """The finding on all engines that it is true of."""
    quiet = [engine for engine in model.engines if _should_draft(engine)]
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


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _not_speculating(finding: NotSpeculating, model: ModelReport) -> Explanation:
    engines = "Engines" if len(finding.engines) > 1 else "Engine"
    method = speculation_of(model).method or "an unknown method"

    return Explanation(
        code=finding.code,
        what=(
            f"{engines} {', '.join(finding.engines)} generated {finding.tokens:,.0f} tokens and"
            f" drafted none, although --speculative-config says {method}."
        ),
        remedy="Look in vLLM's log for what switched drafting off, and restart it.",
        expect="Until then the draft model takes memory and saves no time.",
        verify=AFTER_A_RESTART,
    )


NOT_SPECULATING: Final = FindingKind(
    code=_CODE,
    gate=not_speculating,
    place=Place.NO_DRAFTS,
    explain=_not_speculating,
    why="configured to draft, it drafts nothing",
    remedy="find why in vLLM's log, restart it",
    runbook="SpecDecodeNotSpeculating",
)
